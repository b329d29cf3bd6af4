package idemtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemtest"
)

var memoryCan = idemtest.Abilities{
	SameError:  true,
	InOrder:    true,
	SeesClaims: true,
	Parallel:   true,
	DeadReplay: true,
	NamesKey:   true,
	Deadlock:   true,
	AnyKey:     true,
}

func openMemory(t *testing.T) idemtest.Guard {
	endpoint, err := idempotent.New(idempotent.Options[string, []byte]{TTL: time.Hour})
	require.NoError(t, err)
	return idemtest.Memory(endpoint)
}

func TestTheEndpointConformsInVirtualTime(t *testing.T) {
	can := memoryCan
	can.Bubble = true
	idemtest.Run(t, openMemory, can)
}

func TestTheEndpointConformsInRealTime(t *testing.T) {
	idemtest.Run(t, openMemory, memoryCan)
}
