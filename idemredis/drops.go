package idemredis

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxDrops bounds what an outage of Redis can make a process remember. A claim
// beyond it is left to its lease.
const maxDrops = 10_000

// drops are claims that may have been made and whose effect will not be
// entered: the answer to the claim was lost, or its caller has left. They are
// given up on a goroutine that lives while there are any, tries until Redis
// answers, and ends with the client: left to their lease, such keys would be
// held as unknown although it is known that nothing happened.
type drops struct {
	drop func(ctx context.Context, name, token string) error

	mu      sync.Mutex        // guards what follows
	pending map[string]string // names by token
	running bool
}

func (d *drops) add(name, token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pending) >= maxDrops {
		return
	}
	if d.pending == nil {
		d.pending = make(map[string]string)
	}
	d.pending[token] = name
	if !d.running {
		d.running = true
		go d.run()
	}
}

func (d *drops) run() {
	ctx := context.Background()
	pause := newPauses()
	for {
		name, token, ok := d.next()
		if !ok {
			return
		}
		err := d.drop(ctx, name, token)
		if err != nil && !errors.Is(err, redis.ErrClosed) {
			pause.wait(ctx)
			continue
		}
		pause = newPauses()
		d.mu.Lock()
		delete(d.pending, token)
		d.mu.Unlock()
	}
}

// next returns any of the pending. When there are none the goroutine is over.
func (d *drops) next() (name, token string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for token, name := range d.pending {
		return name, token, true
	}
	d.running = false
	return "", "", false
}
