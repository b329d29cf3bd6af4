package idempotent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The quick start that a newcomer copies is an Example, so that it compiles and
// prints what it says.
func TestReadmeShowsTheExample(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "example_test.go", source, parser.ParseComments)
	require.NoError(t, err)
	example := file.Scope.Lookup("Example").Decl.(*ast.FuncDecl).Body
	body := string(source[files.Position(example.Lbrace).Offset+1 : files.Position(example.Rbrace).Offset])
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+strings.TrimSpace(strings.ReplaceAll(body, "\n\t", "\n"))+"\n```")
}
