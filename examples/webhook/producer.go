package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// atOnce is how many deliveries are on their way at one time.
const atOnce = 8

// A producer delivers at least once: what is not answered with 2xx it sends
// again, and what was answered it may send again too.
type producer struct {
	address  string
	random   *rand.Rand
	receiver *receiver

	mu         sync.Mutex
	deliveries map[*event]int
}

func (p *producer) run(ctx context.Context, events []*event, s settings) error {
	p.deliveries = map[*event]int{}
	if err := p.hangUp(events[0]); err != nil {
		return err
	}
	if err := p.outOfOrder(ctx, events); err != nil {
		return err
	}
	together := slices.Repeat(events[len(events)/2:][:1], atOnce)
	if err := p.parallel(ctx, together); err != nil {
		return err
	}
	if err := p.storm(ctx, events, s.deliveries); err != nil {
		return err
	}
	if s.serve != "" || s.unguarded {
		return nil
	}
	return p.late(ctx, events[len(events)-1])
}

// hangUp sends a whole request and leaves without waiting for the answer.
func (p *producer) hangUp(e *event) error {
	conn, err := net.Dial("tcp", p.address)
	if err != nil {
		return err
	}
	r, err := p.request(context.Background(), e)
	if err != nil {
		return err
	}
	return errors.Join(r.Write(conn), conn.Close())
}

// outOfOrder delivers the events that have a subject once, the newest first.
func (p *producer) outOfOrder(ctx context.Context, events []*event) error {
	type dated struct {
		*event
		asOf uint64
	}
	var subjects []dated
	for _, e := range events {
		if _, asOf, ok := subject(e.body); ok {
			subjects = append(subjects, dated{e, asOf})
		}
	}
	slices.SortStableFunc(subjects, func(a, b dated) int { return cmp.Compare(b.asOf, a.asOf) })
	for _, e := range subjects {
		if err := p.deliver(ctx, e.event); err != nil {
			return err
		}
	}
	return nil
}

// storm delivers each event so many times, shuffled.
func (p *producer) storm(ctx context.Context, events []*event, times int) error {
	deliveries := slices.Repeat(events, times)
	p.random.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	return p.parallel(ctx, deliveries)
}

// parallel makes the deliveries in their order, atOnce of them at one time.
func (p *producer) parallel(ctx context.Context, deliveries []*event) error {
	queue := make(chan *event, len(deliveries))
	for _, e := range deliveries {
		queue <- e
	}
	close(queue)
	var workers sync.WaitGroup
	failures := make(chan error, atOnce)
	for range atOnce {
		workers.Go(func() {
			for e := range queue {
				if err := p.deliver(ctx, e); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	workers.Wait()
	close(failures)
	return <-failures
}

// late delivers an event once more after its window has ended.
func (p *producer) late(ctx context.Context, e *event) error {
	for deadline := time.Now().Add(time.Minute); p.receiver.endpoint.Stats().Retained > 0; {
		if time.Now().After(deadline) {
			return errors.New("webhook: the window does not end")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return p.deliver(ctx, e)
}

// deliver sends an event until it is acknowledged with 2xx, or told for good
// that its time is over.
func (p *producer) deliver(ctx context.Context, e *event) error {
	for {
		r, err := p.request(ctx, e)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return fmt.Errorf("webhook: %w", err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
			return fmt.Errorf("webhook: %w", err)
		case resp.StatusCode/100 == 2, resp.StatusCode == http.StatusGone:
			return nil
		case resp.StatusCode == http.StatusInternalServerError:
		default:
			return fmt.Errorf("webhook: event %s: status %d", e.id, resp.StatusCode)
		}
	}
}

// request makes one delivery of e, and counts it.
func (p *producer) request(ctx context.Context, e *event) (*http.Request, error) {
	p.mu.Lock()
	p.deliveries[e]++
	p.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+p.address+"/webhook", bytes.NewReader(e.body))
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Event", e.name)
	if !e.anonymous {
		r.Header.Set("X-GitHub-Delivery", e.id)
	}
	return r, nil
}
