package idemdebug_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemdebug"
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
