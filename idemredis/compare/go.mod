module github.com/idempotent-go/idempotent/idemredis/compare

go 1.26.0

require (
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/idempotent-go/idempotent v0.0.0
	github.com/idempotent-go/idempotent/idemredis v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	github.com/idempotent-go/idempotent => ../../
	github.com/idempotent-go/idempotent/idemredis => ../
)
