module github.com/idempotent-go/idempotent/idemhttp/peertest

go 1.26.0

require (
	github.com/go-chi/chi/v5 v5.2.3
	github.com/idempotent-go/idempotent v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.25.0 // indirect
)

replace github.com/idempotent-go/idempotent => ../../
