// Package idemsql is a transactional inbox: it runs each event's effect once
// per consumer, over any number of processes, with what the effect writes and
// the record that it did committed together.
package idemsql
