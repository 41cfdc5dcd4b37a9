// Package boundedregexp matches regular expressions that users have written against texts
// that other users have sent, at a bounded cost. Start at Pattern, an expression, and Work,
// what one request may spend on matching.
//
// Package regexp takes a time of the size of the program times the length of the text, and
// cannot be interrupted. A dozen characters are a program of thousands of instructions, and a
// text may have millions of characters: minutes of a core. Here the product is subtracted from
// a Work before anything is matched, and what takes long looks at the context meanwhile. Most matches
// take a small part of that: what they did not take, by the clock, is given back.
package boundedregexp

import (
	"context"
	"errors"
	"io"
	"regexp"
	"regexp/syntax"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	// MaxWork is what a request may spend: instructions of programs times bytes of texts, which
	// take 4 to 15 ns each. A program of 90 instructions, more than most have, fits on a text of 3 MiB.
	MaxWork = 256 << 20
	// maxProgram is how many instructions a program may have. It takes 5 MB.
	maxProgram = 128 << 10
	// compileWork is what an instruction costs that is compiled.
	compileWork = 64
	// workTime is a time that no unit of work takes less than if nothing shortens a match.
	workTime = 4 * time.Nanosecond
	// measuredWork is the work from which on a match is measured: looking at the clock takes as long as
	// what is less may take.
	measuredWork = 2 << 10
	// heavyWork is the work from which on a match looks at the context, once for as much work.
	heavyWork = 1 << 20
	// maxVerdicts bounds the results that a Work remembers.
	maxVerdicts = 1024
)

// ErrTooCostly says that a request has spent all that it may.
var ErrTooCostly = errors.New("matching regular expressions exceeds the cost limit of a request")

// ErrTooLarge says that the program of an expression is too large.
var ErrTooLarge = errors.New("the regular expression is too large")

// Work is what one request may spend. It is not safe for concurrent use.
type Work struct {
	ctx context.Context
	// left is what may still be spent, unchecked what was spent since the context was looked at.
	left, unchecked int64
	err             error
	// verdicts are the results of matches that were costly.
	verdicts map[verdict]bool
}

type verdict struct {
	pattern *Pattern
	text    string
}

// NewWork returns a Work that ends with a context.
func NewWork(ctx context.Context, limit int64) *Work { return &Work{ctx: ctx, left: limit} }

// Err returns why nothing can be spent any more: ErrTooCostly or the error of the context.
func (w *Work) Err() error { return w.err }

// Spend subtracts work, and returns an error if there is not as much left or the context has ended.
func (w *Work) Spend(n int64) error {
	if w.err != nil {
		return w.err
	}
	if w.left -= n; w.left < 0 {
		w.err = ErrTooCostly
		return w.err
	}
	if w.unchecked += n; w.unchecked >= heavyWork {
		w.unchecked = 0
		w.err = w.ctx.Err()
	}
	return w.err
}

// refund gives back what a match was expected to cost beyond what it took.
func (w *Work) refund(cost int64, began time.Time) {
	w.left += cost - min(cost, 1+int64(time.Since(began)/workTime))
}

// Set is a set of patterns that are used together, those of a schema.
type Set struct {
	mu     sync.Mutex
	byText map[string]*Pattern
	// kept is how many bytes of programs are kept, and limit how many may be.
	kept, limit atomic.Int64
	// heavy has room for the one match at a time that is costly.
	heavy chan struct{}
}

const (
	// maxKept bounds the memory of the programs of a set. Others are compiled for each use.
	maxKept = 4 << 20
	// programBytes and instructionBytes are the memory of a compiled program.
	programBytes, instructionBytes = 1 << 10, 160
)

func programWeight(instructions int64) int64 { return programBytes + instructionBytes*instructions }

// NewSet returns an empty set.
func NewSet() *Set { return &Set{byText: map[string]*Pattern{}, heavy: make(chan struct{}, 1)} }

// Weight returns how many bytes the patterns of the set take when they are in use.
func (s *Set) Weight() int { return int(s.limit.Load()) }

// Pattern returns the pattern of a text. It is compiled when it is first used.
func (s *Set) Pattern(text string) *Pattern {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byText[text]
	if p == nil {
		p = &Pattern{text: text, set: s}
		s.byText[text] = p
		if tree, err := syntax.Parse(text, syntax.Perl); err == nil {
			s.limit.Store(min(maxKept, s.limit.Load()+programWeight(instructions(tree))))
		}
	}
	return p
}

// Pattern is a regular expression.
type Pattern struct {
	text string
	set  *Set

	program atomic.Pointer[program]
}

// New returns a pattern that is in no set with others.
func New(text string) *Pattern { return NewSet().Pattern(text) }

// String returns the text of the pattern.
func (p *Pattern) String() string { return p.text }

// program is a compiled pattern.
type program struct {
	*regexp.Regexp
	size int64 // in instructions, never less than it has
}

// Check returns the error of a text that is no regular expression, the same as regexp.Compile
// does, without compiling it.
func Check(text string) error {
	_, err := syntax.Parse(text, syntax.Perl)
	return err
}

// Match reports whether a text matches the pattern. The error is that of work, or that of the
// pattern.
func (p *Pattern) Match(work *Work, text string) (bool, error) {
	at := verdict{p, text}
	if len(work.verdicts) > 0 {
		if known, ok := work.verdicts[at]; ok {
			return known, nil
		}
	}
	program, err := p.compiled(work)
	if err != nil {
		return false, err
	}
	cost := program.size * int64(len(text))
	if err := work.Spend(cost); err != nil {
		return false, err
	}
	if cost < measuredWork {
		return program.MatchString(text), nil
	}
	if cost < heavyWork {
		defer work.refund(cost, time.Now())
		return program.MatchString(text), nil
	}
	select {
	case p.set.heavy <- struct{}{}:
		defer func() { <-p.set.heavy }()
	case <-work.ctx.Done():
		work.err = work.ctx.Err()
		return false, work.err
	}
	reader := &runes{ctx: work.ctx, text: text, every: 1 + int(heavyWork/program.size)}
	began := time.Now()
	matches := program.MatchReader(reader)
	work.refund(cost, began)
	if reader.err != nil {
		work.err = reader.err
		return false, work.err
	}
	if work.verdicts == nil {
		work.verdicts = map[verdict]bool{}
	}
	if len(work.verdicts) < maxVerdicts {
		work.verdicts[at] = matches
	}
	return matches, nil
}

// MatchSmall reports whether a text matches the pattern, if that costs little, which ok says.
func (p *Pattern) MatchSmall(text string) (matches, ok bool) {
	program, err := p.compiled(NewWork(context.Background(), heavyWork))
	if err != nil || program.size*int64(len(text)) >= heavyWork {
		return false, false
	}
	return program.MatchString(text), true
}

// FindAll returns the first parts of a text that match the pattern, all if n is negative. Each
// of them may look at all that follows, and this cannot be interrupted.
func (p *Pattern) FindAll(work *Work, text string, n int) ([]string, error) {
	program, err := p.compiled(work)
	if err != nil {
		return nil, err
	}
	once, most := program.size*int64(len(text)), int64(len(text))+1
	if n >= 0 {
		most = min(most, int64(n)+1)
	}
	if err := work.Spend(once * most); err != nil {
		return nil, err
	}
	found := program.FindAllString(text, n)
	work.left += once * (most - min(most, int64(len(found))+1)) // what has not happened
	return found, nil
}

// compiled returns the program, which is kept if the set has room for it.
func (p *Pattern) compiled(work *Work) (*program, error) {
	if known := p.program.Load(); known != nil {
		return known, nil
	}
	if err := work.Spend(int64(len(p.text)) * compileWork); err != nil {
		return nil, err
	}
	tree, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := instructions(tree)
	if size > maxProgram {
		return nil, ErrTooLarge
	}
	if err := work.Spend(size * compileWork); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(p.text)
	if err != nil {
		return nil, err
	}
	made := &program{re, size}
	weight := programWeight(size)
	if p.set.kept.Add(weight) > p.set.limit.Load() || !p.program.CompareAndSwap(nil, made) {
		p.set.kept.Add(-weight)
	}
	return made, nil
}

// instructions returns a bound of the instructions of an expression's program. A class of
// characters counts more if it is made of many ranges.
func instructions(re *syntax.Regexp) (n int64) {
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return max(1, int64(len(re.Rune)))
	case syntax.OpCharClass:
		return 1 + int64(len(re.Rune))/32
	case syntax.OpRepeat:
		return 2 + (n+1)*int64(max(re.Min, re.Max, 1))
	case syntax.OpAlternate:
		return n + int64(len(re.Sub)) - 1
	case syntax.OpConcat:
		return max(1, n)
	case syntax.OpCapture, syntax.OpStar:
		return n + 2
	}
	return n + 1
}

// runes reads the characters of a text until the context ends.
type runes struct {
	ctx   context.Context
	text  string
	every int // characters between looks at the context
	read  int
	err   error
}

// ReadRune implements io.RuneReader.
func (r *runes) ReadRune() (rune, int, error) {
	if r.read++; r.read%r.every == 0 {
		r.err = r.ctx.Err()
	}
	if r.text == "" || r.err != nil {
		return 0, 0, io.EOF
	}
	c, size := utf8.DecodeRuneInString(r.text)
	r.text = r.text[size:]
	return c, size, nil
}
