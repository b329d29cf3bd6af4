package idemhttp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemhttp"
)

// FuzzResponseJSON: a response comes back from JSON byte for byte.
func FuzzResponseJSON(f *testing.F) {
	f.Add(200, "", "", []byte(nil), "", false)
	f.Add(201, `"v1"`, "a, b", []byte("\x00\xff<html>"), "", false)
	f.Add(200, "\xe9\xff\xc3\xa9 é", "\u2028", []byte(nil), "ref-\xff", true)
	f.Fuzz(func(t *testing.T, status int, etag, link string, body []byte, ref string, omitted bool) {
		if len(body) == 0 {
			body = nil
		}
		want := idemhttp.Response{Status: status, Header: http.Header{"Etag": {etag}, "Link": {link, ""}}, Body: body, BodyRef: ref, Omitted: omitted}
		text, err := json.Marshal(want)
		require.NoError(t, err)
		var got idemhttp.Response
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	})
}

func TestResponseJSON(t *testing.T) {
	for _, want := range []idemhttp.Response{{}, {Status: 200, Header: http.Header{"Content-Type": nil}},
		{Status: 200, Header: http.Header{}}, {Status: 204, Header: http.Header{"Vary": {}}}} {
		text, err := json.Marshal(want)
		require.NoError(t, err)
		var got idemhttp.Response
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	}
	for _, bad := range []string{`{"status":"x"}`, `{"header":{"Etag":["\u0100"]}}`, `{"header":{"\u0100":[]}}`, `{"bodyRef":"\u20ac"}`, `[]`} {
		require.ErrorContains(t, json.Unmarshal([]byte(bad), new(idemhttp.Response)), "idemhttp: response: ", bad)
	}
	t.Run("an executor that stores JSON replays the same bytes", func(t *testing.T) {
		store := &jsonStore{records: map[string][]byte{}}
		h := &counting{answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Disposition"] = []string{"attachment; filename=\"\xe9\""}
			w.WriteHeader(201)
			w.Write([]byte("\x00\xff"))
		}}
		guarded := idemhttp.Webhook(store, idemhttp.Options{})(h)
		first := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		second := send(guarded, "POST", "/", "", "Webhook-Id", "1")
		require.Equal(t, first.Code, second.Code)
		require.Equal(t, first.Body, second.Body)
		require.Equal(t, first.Header()["Content-Disposition"], second.Header()["Content-Disposition"])
		require.EqualValues(t, 1, h.runs.Load())
	})
}

// jsonStore is an executor for one caller at a time.
type jsonStore struct{ records map[string][]byte }

func (s *jsonStore) Handle(ctx context.Context, req idempotent.Request[string], effect func(context.Context) (idemhttp.Response, error)) (idemhttp.Response, idempotent.Verdict, error) {
	var response idemhttp.Response
	if text, ok := s.records[req.Key]; ok {
		return response, idempotent.Replayed, json.Unmarshal(text, &response)
	}
	response, err := effect(ctx)
	if err == nil {
		s.records[req.Key], err = json.Marshal(response)
	}
	return response, idempotent.Executed, err
}
