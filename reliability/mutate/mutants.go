package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mutant is one small change of one file.
type mutant struct {
	file     string // base name
	fn       string // the function it is in
	line     int
	from, to int // bytes of the file
	old, new string
}

// id survives changes elsewhere in the file.
func (m mutant) id() string {
	return fmt.Sprintf("%s %s: %s => %s", m.file, m.fn, oneLine(m.old), oneLine(m.new))
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d %s: %s => %s", m.file, m.line, m.fn, oneLine(m.old), oneLine(m.new))
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 100 {
		s = s[:97] + "..."
	}
	if s == "" {
		return "(nothing)"
	}
	return s
}

// apply returns the file's text with the change. Lines stay where they are.
func (m mutant) apply(source []byte) []byte {
	lost := strings.Count(m.old, "\n") - strings.Count(m.new, "\n")
	out := append([]byte(nil), source[:m.from]...)
	out = append(out, m.new...)
	out = append(out, strings.Repeat("\n", max(lost, 0))...)
	return append(out, source[m.to:]...)
}

// generator collects the mutants of one file.
type generator struct {
	file    string
	source  []byte
	fset    *token.FileSet
	fn      string
	mutants []mutant
}

// mutantsOf returns all mutants of a file, in its order.
func mutantsOf(path string) ([]mutant, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	g := &generator{file: filepath.Base(path), source: source, fset: token.NewFileSet()}
	file, err := parser.ParseFile(g.fset, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
			g.fn = fn.Name.Name
			ast.Inspect(fn.Body, g.visit)
		}
	}
	return g.mutants, nil
}

func (g *generator) offset(p token.Pos) int { return g.fset.Position(p).Offset }

func (g *generator) text(n ast.Node) string {
	return string(g.source[g.offset(n.Pos()):g.offset(n.End())])
}

// replace adds a mutant for the text [from, to).
func (g *generator) replace(from, to token.Pos, text string) {
	g.mutants = append(g.mutants, mutant{
		file: g.file, fn: g.fn, line: g.fset.Position(from).Line,
		from: g.offset(from), to: g.offset(to),
		old: string(g.source[g.offset(from):g.offset(to)]), new: text,
	})
}

var operators = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.AND: {"|"}, token.OR: {"&"}, token.AND_NOT: {"&"}, token.SHL: {">>"}, token.SHR: {"<<"},
	token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="}, token.OR_ASSIGN: {"&="}, token.MUL_ASSIGN: {"/="},
	token.INC: {"--"}, token.DEC: {"++"},
}

func (g *generator) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BlockStmt:
		g.statements(n.List)
	case *ast.CaseClause:
		g.statements(n.Body)
	case *ast.CommClause:
		g.statements(n.Body)
	case *ast.IfStmt:
		g.force(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			g.replace(n.Cond.Pos(), n.Cond.End(), "("+g.text(n.Cond)+") && false")
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			g.cases(n.Body)
		}
	case *ast.BinaryExpr:
		g.operator(n.OpPos, n.Op)
	case *ast.AssignStmt:
		g.operator(n.TokPos, n.Tok)
	case *ast.IncDecStmt:
		g.operator(n.TokPos, n.Tok)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			g.replace(n.Pos(), n.X.Pos(), "")
		}
	case *ast.BasicLit:
		if i, err := strconv.Atoi(n.Value); err == nil {
			g.replace(n.Pos(), n.End(), strconv.Itoa(i+1))
		}
	case *ast.Ident:
		if flipped := map[string]string{"true": "false", "false": "true"}[n.Name]; flipped != "" {
			g.replace(n.Pos(), n.End(), flipped)
		}
	}
	return true
}

func (g *generator) operator(at token.Pos, op token.Token) {
	for _, other := range operators[op] {
		g.replace(at, at+token.Pos(len(op.String())), other)
	}
}

// force makes a condition always hold, and never. It is still evaluated.
func (g *generator) force(cond ast.Expr) {
	g.replace(cond.Pos(), cond.End(), "("+g.text(cond)+") || true")
	g.replace(cond.Pos(), cond.End(), "("+g.text(cond)+") && false")
}

func (g *generator) cases(body *ast.BlockStmt) {
	for _, s := range body.List {
		for _, cond := range s.(*ast.CaseClause).List {
			g.force(cond)
		}
	}
}

// statements deletes each statement that can be missed.
func (g *generator) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if !strings.Contains(g.text(s), ".step(") { // the tests' own hook
				g.replace(s.Pos(), s.End(), "")
			}
		case *ast.IncDecStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt, *ast.BranchStmt:
			g.replace(s.Pos(), s.End(), "")
		case *ast.AssignStmt:
			if s.Tok == token.ASSIGN && len(s.Rhs) == 1 && len(s.Lhs) == 1 {
				g.replace(s.Pos(), s.End(), "_ = "+g.text(s.Rhs[0]))
			} else if s.Tok != token.DEFINE {
				g.replace(s.Pos(), s.End(), "")
			}
		case *ast.ReturnStmt:
			if len(s.Results) == 0 {
				g.replace(s.Pos(), s.End(), "")
			}
		}
	}
}
