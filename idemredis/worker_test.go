package idemredis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemredis"
)

// crashLease is short, so that a rig of many kills is quick.
const crashLease = 120 * time.Millisecond

// lanes is how many keys a crew has at work at a time. All workers race in each
// lane, over the keys lane, lane+lanes, lane+2*lanes, …: a killed owner holds its
// own lane up and no other.
const lanes = 4

// A crew is worker processes that race over the keys of one folder and one
// Redis. What they do survives them in the folder's files.
type crew struct {
	client *redis.Client
	dir    string
	guard  *idemredis.Guard[string]
	again  bool // OnLostLease is RunAgain
	keyed  bool // the effect store is unique on the key
	naive  bool // look, act, mark: no claim at all
}

func newCrew(protocol, addr, dir string) (*crew, error) {
	c := &crew{
		client: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}),
		dir:    dir,
		again:  protocol == "again" || protocol == "again, keyed",
		keyed:  protocol == "again, keyed",
		naive:  protocol == "naive",
	}
	opts := idemredis.Options{Lease: crashLease}
	if protocol == "once" { // nobody is killed, and fifty processes may be slow to have their turns
		opts.Lease = 0
	}
	if c.again {
		opts.OnLostLease = idemredis.RunAgain
	}
	var err error
	c.guard, err = idemredis.New[string](c.client, opts)
	return c, err
}

// work is what a worker process does until it is killed.
func work(protocol string) {
	c, err := newCrew(protocol, os.Getenv("IDEMREDIS_ADDR"), os.Getenv("IDEMREDIS_DIR"))
	if err != nil {
		panic(err)
	}
	if protocol == "once" {
		fmt.Println("at work")
		if err := c.client.BLPop(context.Background(), 0, "go").Err(); err != nil {
			panic(err)
		}
		for !c.handle(context.Background(), 0) {
		}
		return
	}
	for lane := range lanes {
		go func() {
			for key := c.newest(lane); ; {
				if c.handle(context.Background(), key) {
					key += lanes
				}
			}
		}()
	}
	fmt.Println("at work")
	select {}
}

// handle calls the key once and notes what came of it. It says whether the key
// is over.
func (c *crew) handle(ctx context.Context, key int) (over bool) {
	var err error
	if c.naive {
		err = c.lookActMark(ctx, key)
	} else {
		_, _, err = c.guard.Handle(ctx, request(fmt.Sprint(key)), func(ctx context.Context) (string, error) {
			return "done", c.effect(key)
		})
	}
	switch {
	case err == nil:
		c.note("acknowledged", key)
	case errors.Is(err, idempotent.ErrOutcomeUnknown):
		c.note("unknown", key)
	default: // a redelivery follows; Redis may be down
		<-time.After(5 * time.Millisecond)
		return false
	}
	c.note(lane(key%lanes), key)
	return true
}

func lane(n int) string { return "lane-" + strconv.Itoa(n) }

// effect takes a while, has its side effect half way, and cannot be called
// back: it heeds no context.
func (c *crew) effect(key int) error {
	<-time.After(time.Millisecond)
	c.note("tried", key)
	if c.keyed {
		row, err := os.OpenFile(filepath.Join(c.dir, "row-"+strconv.Itoa(key)), os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			if errors.Is(err, os.ErrExist) {
				return nil // it happened before
			}
			return err
		}
		_ = row.Close()
	} else {
		c.note("effect", key)
	}
	<-time.After(2 * time.Millisecond)
	return nil
}

// lookActMark is how it must not be done.
func (c *crew) lookActMark(ctx context.Context, key int) error {
	name := "naive:" + strconv.Itoa(key)
	if n, err := c.client.Exists(ctx, name).Result(); err != nil || n > 0 {
		return err
	}
	if err := c.effect(key); err != nil {
		return err
	}
	return c.client.Set(ctx, name, "done", 0).Err()
}

// lineLength is what note writes: one short write with O_APPEND is whole and
// survives the process.
const lineLength = 9

func (c *crew) note(what string, key int) {
	f, err := os.OpenFile(filepath.Join(c.dir, what), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%08d\n", key); err != nil {
		panic(err)
	}
}

// notes returns how often each key was noted.
func (c *crew) notes(what string) map[int]int {
	times := make(map[int]int)
	raw, _ := os.ReadFile(filepath.Join(c.dir, what)) // no file: no notes
	for line := range len(raw) / lineLength {
		key, err := strconv.Atoi(string(raw[line*lineLength : (line+1)*lineLength-1]))
		if err != nil {
			panic(err)
		}
		times[key]++
	}
	return times
}

// newest is the lane's key that was over last: a new worker joins the others there.
func (c *crew) newest(n int) int {
	raw, _ := os.ReadFile(filepath.Join(c.dir, lane(n)))
	if len(raw) < lineLength {
		return n
	}
	key, err := strconv.Atoi(string(raw[len(raw)-lineLength : len(raw)-1]))
	if err != nil {
		panic(err)
	}
	return key
}

// begun returns every key that a worker may have begun, lane by lane.
func (c *crew) begun() (keys []int) {
	for n := range lanes {
		for key := n; key <= c.newest(n)+lanes; key += lanes {
			keys = append(keys, key)
		}
	}
	return keys
}
