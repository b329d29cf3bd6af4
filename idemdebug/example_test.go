package idemdebug_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// A page is mounted beside pprof, where only operators come.
func ExampleNew() {
	var late idemdebug.StaleLog[string]
	payments, err := idempotent.New(idempotent.Options[string, int]{OnStale: late.Watch(nil)})
	if err != nil {
		panic(err)
	}
	page, err := idemdebug.New(payments, idemdebug.Options[string, int]{
		Name: "payments", Stale: &late, AllowForget: true,
	})
	if err != nil {
		panic(err)
	}
	internal := http.NewServeMux()
	internal.Handle("/debug/payments", page)

	_, _, _ = payments.Do(context.Background(), "order-1", func(context.Context) (int, error) { return 4200, nil })
	w := httptest.NewRecorder()
	internal.ServeHTTP(w, httptest.NewRequest("GET", "/debug/payments?key=order-1", nil))
	fmt.Println(w.Code, strings.Contains(w.Body.String(), "<dt>Result</dt><dd><b>success</b></dd>"))
	// Output: 200 true
}

// An endpoint of idemhttp keeps responses. An operator who settles one types its
// body; the calls that come then are answered with it.
func ExampleOptions_responses() {
	endpoint, err := idempotent.New(idempotent.Options[string, idemhttp.Response]{})
	if err != nil {
		panic(err)
	}
	page, err := idemdebug.New(endpoint, idemdebug.Options[string, idemhttp.Response]{
		Name:         "payments",
		AllowResolve: true,
		ParseValue: func(text string) (idemhttp.Response, error) {
			if !json.Valid([]byte(text)) {
				return idemhttp.Response{}, errors.New("the body is no JSON")
			}
			header := http.Header{"Content-Type": {"application/json"}}
			return idemhttp.Response{Status: http.StatusOK, Header: header, Body: []byte(text)}, nil
		},
		FormatValue: func(r idemhttp.Response) string { return fmt.Sprintf("%d\n%s", r.Status, r.Body) },
	})
	if err != nil {
		panic(err)
	}
	internal := http.NewServeMux()
	internal.Handle("/debug/payments", page)
	fmt.Println("to settle:", endpoint.Stats().Unknown)
	// Output: to settle: 0
}
