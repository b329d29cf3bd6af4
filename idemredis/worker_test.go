package idemredis_test

func work(role string) { panic(role) }
