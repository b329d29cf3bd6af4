package idempotent

// claimSet holds the running claims of a shard, one a key: in a list while they
// are few, which is nearly always. Guarded by mu.
type claimSet[K comparable, V any] struct {
	few  []*claim[K, V]
	many map[K]*claim[K, V] // all of them, if not nil
}

const fewClaims = 8

func (s *claimSet[K, V]) len() int { return len(s.few) + len(s.many) }

func (s *claimSet[K, V]) get(key K) *claim[K, V] {
	if s.many != nil {
		return s.many[key]
	}
	for _, c := range s.few {
		if c.key == key {
			return c
		}
	}
	return nil
}

// put adds c, whose key must have no claim.
func (s *claimSet[K, V]) put(c *claim[K, V]) {
	if s.many == nil && len(s.few) < fewClaims {
		s.few = append(s.few, c)
		return
	}
	if s.many == nil {
		s.many = make(map[K]*claim[K, V])
		for _, other := range s.few {
			s.many[other.key] = other
		}
		s.few = nil
	}
	s.many[c.key] = c
}

func (s *claimSet[K, V]) remove(key K) {
	if s.many != nil {
		if delete(s.many, key); len(s.many) == 0 {
			s.many = nil // a map never shrinks
		}
		return
	}
	for i, c := range s.few {
		if c.key == key {
			last := len(s.few) - 1
			s.few[i], s.few[last] = s.few[last], nil
			s.few = s.few[:last]
			return
		}
	}
}

func (s *claimSet[K, V]) each(do func(*claim[K, V])) {
	for _, c := range s.few {
		do(c)
	}
	for _, c := range s.many {
		do(c)
	}
}
