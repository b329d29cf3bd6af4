package idemprom_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/idemprom"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	require.NoError(t, err, "install promtool: apt-get install prometheus")
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "promtool %s\n%s", strings.Join(args, " "), out)
}

// exported is what a registry serves: metric names, each with its labels.
func exported(t *testing.T) map[string][]string {
	reg := prometheus.NewRegistry()
	reg.MustRegister(idemprom.New("any", endpoint(t, idempotent.Options[string, string]{})))
	families, err := reg.Gather()
	require.NoError(t, err)
	names := make(map[string][]string)
	for _, family := range families {
		labels := []string{"instance", "job"} // set by the scrape
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		names[family.GetName()] = labels
	}
	return names
}

var (
	metricName = regexp.MustCompile(`\bidempotent_\w+`)
	labelName  = regexp.MustCompile(`(\w+)\s*=~?\s*"`)
	grouping   = regexp.MustCompile(`\b(?:by|without) \(([^)]*)\)`)
)

// requireExported refuses an expression over names that the collector lacks.
func requireExported(t *testing.T, expr string) {
	t.Helper()
	names := exported(t)
	var labels []string
	used := metricName.FindAllString(expr, -1)
	require.NotEmpty(t, used, expr)
	for _, name := range used {
		require.Contains(t, slices.Collect(maps.Keys(names)), name, expr)
		labels = append(labels, names[name]...)
	}
	for _, m := range labelName.FindAllStringSubmatch(expr, -1) {
		require.Contains(t, labels, m[1], expr)
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ", ") {
			require.Contains(t, labels, label, expr)
		}
	}
}

func TestAlertRules(t *testing.T) {
	t.Run("promtool accepts them", func(t *testing.T) {
		promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
	})
	t.Run("each fires when it should and stays silent otherwise", func(t *testing.T) {
		promtool(t, "test", "rules", "alerts_test.yml")
	})
	t.Run("they read only what the collector exports", func(t *testing.T) {
		rules, err := os.ReadFile("alerts.yml")
		require.NoError(t, err)
		requireExported(t, string(rules))
	})
}

type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Datasource               struct{ UID string }
		Targets                  []struct{ RefID, Expr, LegendFormat string }
	}
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var board dashboard
	require.NoError(t, json.Unmarshal(text, &board))
	require.NotEmpty(t, board.Panels)

	t.Run("promtool accepts every query, over exported names alone", func(t *testing.T) {
		set := []string{"$__rate_interval", "5m", "$__range", "1h"} // by Grafana
		for _, v := range board.Templating.List {
			set = append(set, "$"+v.Name, ".*")
			if v.Type == "query" {
				requireExported(t, v.Definition)
			}
		}
		variables := strings.NewReplacer(set...)
		rules := "groups:\n- name: dashboard\n  rules:\n"
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				requireExported(t, target.Expr)
				expr := variables.Replace(target.Expr)
				require.NotContains(t, expr, "$", "a variable that the dashboard does not have")
				rules += fmt.Sprintf("  - record: panel_%d_%s\n    expr: %q\n", panel.ID, target.RefID, expr)
			}
		}
		file := filepath.Join(t.TempDir(), "dashboard.yml")
		require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
		promtool(t, "check", "rules", "--lint=all", "--lint-fatal", file)
	})

	t.Run("every metric is on it", func(t *testing.T) {
		for name := range exported(t) {
			require.Contains(t, string(text), name)
		}
	})

	t.Run("every panel says what it shows, and none lies over another", func(t *testing.T) {
		taken := make(map[[2]int]string)
		ids := make(map[int]bool)
		for _, panel := range board.Panels {
			require.NotEmpty(t, panel.Title)
			require.NotEmpty(t, panel.Description, panel.Title)
			require.NotEmpty(t, panel.Targets, panel.Title)
			require.Equal(t, "${datasource}", panel.Datasource.UID, panel.Title)
			require.False(t, ids[panel.ID], panel.Title)
			ids[panel.ID] = true
			at := panel.GridPos
			require.LessOrEqual(t, at.X+at.W, 24, panel.Title)
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					require.Empty(t, taken[[2]int{x, y}], panel.Title)
					taken[[2]int{x, y}] = panel.Title
				}
			}
		}
	})
}
