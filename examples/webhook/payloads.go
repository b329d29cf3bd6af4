package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/idempotent-go/idempotent/idemhttp"
)

// An event is one payload, and what the producer and the receiver agree to call it.
type event struct {
	name string // as in X-GitHub-Event
	id   string // the key: of the delivery, or of the body if anonymous
	body []byte
	// anonymous events are delivered without X-GitHub-Delivery.
	anonymous bool
}

// load reads a folder's JSON files. Every fourth event is anonymous, unless
// another has the same body: then the body is no name.
func load(folder fs.FS, random *rand.Rand) ([]*event, error) {
	names, err := fs.Glob(folder, "*.json")
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	var events []*event
	for _, name := range names {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, fmt.Errorf("webhook: %w", err)
		}
		some, err := parse(name, text)
		if err != nil {
			return nil, fmt.Errorf("webhook: %s: %w", name, err)
		}
		events = append(events, some...)
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("webhook: -payloads: the folder has no JSON files")
	}
	bodies := map[string]int{}
	for _, e := range events {
		bodies[string(e.body)]++
	}
	for i, e := range events {
		e.id = guid(random)
		if e.anonymous = i%4 == 3 && bodies[string(e.body)] == 1; e.anonymous {
			e.id, _ = idemhttp.BodyHash(nil, e.body)
		}
	}
	return events, nil
}

// parse reads one payload, or an index of many.
func parse(file string, text []byte) ([]*event, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		if !json.Valid(text) {
			return nil, fmt.Errorf("no JSON")
		}
		name, _, _ := strings.Cut(file, ".")
		return []*event{{name: name, body: text}}, nil
	}
	var index []struct {
		Name     string
		Examples []json.RawMessage
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, err
	}
	var events []*event
	for _, entry := range index {
		for _, example := range entry.Examples {
			events = append(events, &event{name: entry.Name, body: example})
		}
	}
	return events, nil
}

func guid(random *rand.Rand) string {
	a, b := random.Uint64(), random.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// subject says whose state a payload carries and as of when. Payloads of other
// kinds have no subject, and there is nothing that they could overwrite.
func subject(payload []byte) (resource string, asOf uint64, ok bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(payload, &members) != nil {
		return "", 0, false
	}
	for _, kind := range []string{"pull_request", "issue", "discussion", "milestone", "check_suite", "deployment"} {
		var object struct {
			ID        int64     `json:"id"`
			UpdatedAt time.Time `json:"updated_at"`
		}
		if json.Unmarshal(members[kind], &object) == nil && object.ID != 0 && object.UpdatedAt.Unix() > 0 {
			return fmt.Sprintf("%s %d", kind, object.ID), uint64(object.UpdatedAt.Unix()), true
		}
	}
	return "", 0, false
}
