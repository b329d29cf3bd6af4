// Package peertest tests idemhttp over sockets together with what it is used
// with: net/http's ServeMux and TimeoutHandler, chi, HTTP/1.1 and HTTP/2. It is
// a module of its own, so that the library depends on none of them.
package peertest
