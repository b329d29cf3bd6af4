package idemredis

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// maxDrops bounds what an outage of Redis can make a process remember. A
	// claim beyond it is left to its lease.
	maxDrops = 1000
	// dropTries is how often Redis is asked for a claim that it does not find: a
	// claim whose connection broke may be carried out after its own drop.
	dropTries = 6
)

// drops are claims that may have been made and whose effect will not be
// entered: the answer was lost, or the caller has left. They are given up on a
// goroutine that lives while there are any. It tries until Redis answers and
// ends with the client. Left to their lease such keys would be held as unknown,
// although it is known that nothing happened.
type drops struct {
	drop func(name, token string) (found bool, err error)

	mu      sync.Mutex      // guards what follows
	pending map[string]drop // by token
	running bool
}

type drop struct {
	name  string
	tries int // that Redis answered
}

func (d *drops) add(name, token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pending) >= maxDrops {
		return
	}
	if d.pending == nil {
		d.pending = make(map[string]drop)
	}
	d.pending[token] = drop{name: name}
	if !d.running {
		d.running = true
		go d.run()
	}
}

// run goes round all that are pending until there are none.
func (d *drops) run() {
	for pause := newPauses(); d.round(); {
		pause.wait(context.Background())
	}
}

// round tries each that is pending once, and says whether there was any. If
// not, the goroutine is over.
func (d *drops) round() bool {
	d.mu.Lock()
	d.running = len(d.pending) > 0
	round := maps.Clone(d.pending)
	d.mu.Unlock()
	for token, one := range round {
		found, err := d.drop(one.name, token)
		switch {
		case found, errors.Is(err, redis.ErrClosed):
			one.tries = dropTries
		case err == nil:
			one.tries++
		case !answered(err), starting(err):
			return true // the others would fail too
		}
		d.note(token, one)
	}
	return len(round) > 0
}

func (d *drops) note(token string, one drop) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one.tries < dropTries {
		d.pending[token] = one
	} else {
		delete(d.pending, token)
	}
}
