package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// weave writes all mutants into one overlay: each is a copy of its function, and
// the function calls the copy whose number the process is given. So a test
// binary is built once for all of them. Mutant i has the number i+1.
func (b bench) weave(mutants []mutant) (overlay string, err error) {
	replace := make(map[string]string)
	byFile := make(map[string][]int)
	for i, m := range mutants {
		byFile[m.file] = append(byFile[m.file], i)
	}
	for file, numbers := range byFile {
		text, err := weaveFile(filepath.Join(b.root, file), mutants, numbers)
		if err != nil {
			return "", err
		}
		changed := filepath.Join(b.scratch, file)
		if err := os.WriteFile(changed, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(b.root, file)] = changed
	}
	chosen := filepath.Join(b.scratch, "chosen.go")
	replace[filepath.Join(b.root, "zz_chosen.go")] = chosen
	if err := os.WriteFile(chosen, []byte(chooser), 0o644); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(b.scratch, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o644)
}

const chooser = `package idempotent

import (
	"os"
	"strconv"
)

var chosenMutant, _ = strconv.Atoi(os.Getenv("MUTANT"))
`

func weaveFile(path string, mutants []mutant, numbers []int) ([]byte, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	var out, copies bytes.Buffer
	at, planted := 0, 0
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		from, to := offset(fn.Pos()), offset(fn.End())
		var cases bytes.Buffer
		for _, i := range numbers {
			m := mutants[i]
			if m.from < from || m.to > to {
				continue
			}
			planted++
			name := fmt.Sprintf("%s_m%d", fn.Name.Name, i+1)
			call, err := callOf(fn, name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&cases, "case %d: %s;", i+1, call)
			nameEnd := offset(fn.Name.End())
			fmt.Fprintf(&copies, "\n%s%s%s%s%s\n", source[from:offset(fn.Name.Pos())], name, source[nameEnd:m.from], m.new, source[m.to:to])
		}
		if cases.Len() > 0 {
			brace := offset(fn.Body.Lbrace) + 1
			out.Write(source[at:brace])
			fmt.Fprintf(&out, "switch chosenMutant { %s };", cases.Bytes())
			at = brace
		}
	}
	if planted < len(numbers) {
		return nil, fmt.Errorf("%s: %d of %d mutants reach beyond one function", path, len(numbers)-planted, len(numbers))
	}
	out.Write(source[at:])
	out.Write(copies.Bytes())
	return out.Bytes(), nil
}

// callOf is the statement that calls another function in fn's place.
func callOf(fn *ast.FuncDecl, name string) (string, error) {
	var args []string
	for _, field := range fn.Type.Params.List {
		if len(field.Names) == 0 {
			return "", fmt.Errorf("%s has a parameter without a name", fn.Name.Name)
		}
		for _, n := range field.Names {
			arg := n.Name
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	if fn.Recv != nil {
		if len(fn.Recv.List[0].Names) == 0 {
			return "", fmt.Errorf("%s has a receiver without a name", fn.Name.Name)
		}
		name = fn.Recv.List[0].Names[0].Name + "." + name
	} else if fn.Type.TypeParams != nil {
		var params []string
		for _, field := range fn.Type.TypeParams.List {
			for _, n := range field.Names {
				params = append(params, n.Name)
			}
		}
		name += "[" + strings.Join(params, ", ") + "]"
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if fn.Type.Results == nil {
		return call + "; return", nil
	}
	return "return " + call, nil
}

// checker tells mutants that do not compile.
type checker struct {
	root    string
	fset    *token.FileSet
	imports types.Importer
	files   map[string]*ast.File
}

// imported remembers packages: the importer below asks the go command for the
// folder of each, each time.
type imported struct {
	types.Importer
	known map[string]*types.Package
}

func (i imported) Import(path string) (*types.Package, error) {
	if p := i.known[path]; p != nil {
		return p, nil
	}
	p, err := i.Importer.Import(path)
	i.known[path] = p
	return p, err
}

func newChecker(root string) (*checker, error) {
	c := &checker{root: root, fset: token.NewFileSet(), files: make(map[string]*ast.File)}
	c.imports = imported{importer.ForCompiler(c.fset, "source", nil), make(map[string]*types.Package)}
	paths, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		// Of the files with a build constraint, one is for other builds.
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_nounsafe.go") {
			continue
		}
		if c.files[filepath.Base(path)], err = parser.ParseFile(c.fset, path, nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	return c, c.check("", nil)
}

// check type-checks the package with one file's text replaced.
func (c *checker) check(file string, text []byte) error {
	var files []*ast.File
	for name, f := range c.files {
		if name == file {
			var err error
			if f, err = parser.ParseFile(c.fset, filepath.Join(c.root, name), text, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: c.imports}
	_, err := conf.Check("github.com/idempotent-go/idempotent", c.fset, files, nil)
	return err
}

// viable returns the mutants that compile.
func viable(root string, mutants []mutant) ([]mutant, error) {
	// The importer looks modules up from the working directory.
	if err := os.Chdir(root); err != nil {
		return nil, err
	}
	os.Setenv("GOWORK", "off")
	c, err := newChecker(root)
	if err != nil {
		return nil, fmt.Errorf("the code as it is: %w", err)
	}
	var broken error
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool {
		source, err := os.ReadFile(filepath.Join(root, m.file))
		broken = errors.Join(broken, err)
		return c.check(m.file, m.apply(source)) != nil
	})
	return mutants, broken
}
