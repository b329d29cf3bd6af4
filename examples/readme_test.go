// Package examples holds the programs in its folders, and here a look at those
// that stand in other folders' READMEs.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramsInReadmesCompile(t *testing.T) {
	for _, folder := range []string{"idemdebug", "idemotel", "idemprom", "sequence"} {
		t.Run(folder, func(t *testing.T) {
			folder := filepath.Join("..", folder)
			readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
			require.NoError(t, err)
			_, program, found := strings.Cut(string(readme), "```go\npackage main\n")
			require.True(t, found, "the README has no program")
			program, _, found = strings.Cut(program, "```\n")
			require.True(t, found, "the program has no end")

			file := filepath.Join(t.TempDir(), "main.go")
			require.NoError(t, os.WriteFile(file, []byte("package main\n"+program), 0o600))
			formatted, err := exec.CommandContext(t.Context(), "gofmt", "-l", file).CombinedOutput()
			require.NoError(t, err)
			require.Empty(t, string(formatted), "gofmt would change it")
			vet := exec.CommandContext(t.Context(), "go", "vet", file)
			vet.Dir = folder // its module has what the program imports
			out, err := vet.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
