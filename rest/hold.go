package rest

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A request holds memory from the first byte of its body to the last one of its answer,
// and its client decides how long that takes. So it asks the budget of the server before
// (budget.Gate).

const (
	// bodyFactor is how many times the length of its body, or of the object that it changes,
	// a write holds: the body, the object in two states, what is stored, and the answer.
	bodyFactor = 6
	// answerFactor is how many times the length of an object a response holds while it
	// is written: the encoded object, in a buffer that grows by doubling.
	answerFactor = 3
	// impatience is how long a client may take to read a piece of a response while
	// other requests wait for the memory that it holds.
	impatience = 10 * time.Second
)

// holdBody waits until the body of the request may be read. What it holds is given back
// when the request has been answered.
func (s *scope) holdBody() error {
	length := s.r.ContentLength
	if s.h.Memory == nil || length > maxBody { // which is refused
		return nil
	}
	if length < 0 {
		length = maxBody
	}
	if s.objects != nil && s.req.Name != "" {
		// A few bytes can change, or delete, an object of a megabyte.
		length = max(length, int64(s.objects.SizeOf(s.ctx(), s.key())))
	}
	if length == 0 {
		return nil
	}
	release, err := s.acquire(&s.h.Memory.Bodies, bodyFactor*length)
	if err == nil {
		s.release, s.forBody = append(s.release, release), length
	}
	return err
}

// holdAnswer waits until a response may be made that holds objects, the largest of which
// has a number of stored bytes, one after the other, and decodes so many bytes. The returned
// function gives back what it holds.
func (s *scope) holdAnswer(largest int, decoded int64) (release func(), err error) {
	return s.acquireAnswer(wire.WriterSize + answerFactor*int64(largest) + decoded)
}

// holdRecord waits until an answer of one object may be made, if it is a large one. The returned
// function gives back what it holds.
func (s *scope) holdRecord(rec *store.Record) (release func(), err error) {
	decoded := int64(0)
	if s.mayDecode() {
		decoded = weigh(rec)
	}
	if size := rec.StoredSize(); size > budget.Small || decoded > budget.Small {
		return s.holdAnswer(size, decoded)
	}
	return func() {}, nil
}

func (s *scope) acquireAnswer(bytes int64) (release func(), err error) {
	if s.h.Memory == nil {
		return func() {}, nil
	}
	return s.acquire(&s.h.Memory.Answers, bytes)
}

const (
	// heavyFrom is from how many stored bytes on an object is weighed before it is decoded.
	heavyFrom = 16 << 10
	// tooHeavy is how many times what all requests may decode at a time a body weighs that is
	// refused. Up to there it is decoded alone: a definition of a custom resource can be large.
	tooHeavy = 2
	// heaviest is how many times its stored bytes an object weighs that is made for that.
	heaviest = 64
)

// holdDecoded waits until the body of the request may be decoded, with the object that it
// changes. It must not be called twice, unless endDecoded was called in between.
func (s *scope) holdDecoded(body []byte) error {
	if s.h.Memory == nil {
		return nil
	}
	weight := wire.Weigh(body)
	// Parameters do not count, whatever they are: neither do they for who decodes.
	if m, _, _ := strings.Cut(s.r.Header.Get("Content-Type"), ";"); s.req.CBOR && strings.HasSuffix(strings.ToLower(strings.TrimSpace(m)), "cbor") {
		weight = wire.WeighCBOR(body)
	}
	if limit := s.h.Memory.Decoded.Limit(); limit > 0 && weight > tooHeavy*limit {
		return errTooHeavy()
	}
	if s.objects != nil && s.req.Name != "" {
		// A patch has the object before and after it, too.
		weight += 2 * s.weightOf(s.key())
	}
	if weight <= budget.Small {
		return nil
	}
	release, err := s.acquire(&s.h.Memory.Decoded, weight)
	if err != nil {
		return err
	}
	s.decoded = release
	return nil
}

func errTooHeavy() error {
	return apierrors.NewRequestEntityTooLargeError("too many values for the memory of this server")
}

// heldMemory is the admission.Memory of a write, and that of a JSON patch: what answers of webhooks,
// copies and the object that is made of them take, beside what the request holds for its body.
// One goroutine uses it.
type heldMemory struct {
	s     *scope
	held  budget.Held
	since time.Time // when it began to hold as much as it does

	// object is for the object of the write, decoded for the one that was decoded last. An ordinary one
	// takes nothing.
	object, decoded int64
}

// changes returns the memory for what becomes of the object of the request.
func (s *scope) changes() *heldMemory {
	s.changed.s = s
	return &s.changed
}

// HoldAnswer implements admission.Memory.
func (m *heldMemory) HoldAnswer(bytes int64) error { return m.hold(webhookFactor * bytes) }

// HoldPatch implements admission.Memory.
func (m *heldMemory) HoldPatch(bytes int64) error { return m.hold(bytes) }

// HoldDecoded implements admission.Memory.
func (m *heldMemory) HoldDecoded(text []byte) error {
	if m.s.h.Memory == nil {
		return nil
	}
	weight := wire.Weigh(text)
	if limit := m.s.h.Memory.Decoded.Limit(); limit > 0 && weight > tooHeavy*limit {
		return errTooHeavy()
	}
	// Its text, and what is made of that, as far as they are longer than what has come.
	weight += bodyFactor * max(0, int64(len(text))-m.s.forBody)
	if weight <= ordinaryObject {
		weight = 0
	}
	m.decoded = weight
	return m.hold(weight)
}

// Settle implements admission.Memory.
func (m *heldMemory) Settle(replaced bool) {
	if replaced {
		m.object = m.decoded
	}
	m.decoded = m.object
	m.lower(m.object)
}

// hold waits until so many bytes are held beside the object of the write. Who holds some already does not
// wait for more: others might wait for what it has.
func (m *heldMemory) hold(bytes int64) error {
	if m.s.h.Memory == nil || bytes == 0 {
		return nil
	}
	m.note()
	if m.held.Bytes() == 0 {
		m.held = m.s.h.Memory.Changed.Hold(m.s.req.User.IsAdministrator())
	}
	err := m.held.Raise(m.s.ctx(), m.object+bytes)
	m.since = time.Now()
	if err != nil && !errors.Is(err, budget.ErrBusy) { // by which admission knows that nobody has failed
		return m.s.translate(err)
	}
	return err
}

func (m *heldMemory) lower(bytes int64) {
	m.note()
	m.held.Lower(bytes)
	m.since = time.Now()
}

// note records how long the request has held what it holds.
func (m *heldMemory) note() {
	if bytes := m.held.Bytes(); bytes > 0 {
		m.s.req.HeldMemory(bytes, time.Since(m.since))
	}
}

// end gives back what is held.
func (m *heldMemory) end() {
	if m.held.Bytes() > 0 {
		m.lower(0)
	}
	m.object, m.decoded = 0, 0
}

// endDecoded gives back what holdDecoded holds.
func (s *scope) endDecoded() {
	if s.decoded != nil {
		s.decoded()
		s.decoded = nil
	}
}

const (
	// webhookFactor is how many times the bytes of the answer of a webhook a request holds: its text,
	// which grows by doubling, the patch in it, and its operations.
	webhookFactor = 6
	// ordinaryObject is what an object weighs at most for which nothing is held beside what its body held.
	ordinaryObject = 512 << 10
)

// weightOf weighs the object of a key, if it is large.
func (s *scope) weightOf(key string) int64 {
	if s.objects.SizeOf(s.ctx(), key) < heavyFrom {
		return 0
	}
	rec, err := s.objects.Get(s.ctx(), key, store.Read{Any: true})
	if err != nil {
		return 0 // who changes the object finds out why
	}
	return weigh(rec)
}

func weigh(rec *store.Record) int64 {
	if rec.StoredSize() < heavyFrom {
		return 0
	}
	stored, err := rec.Stored()
	if err != nil {
		return 0
	}
	return wire.Weigh(stored)
}

// holdStored waits until a stored object may be decoded to be deleted. The returned function
// gives back what it holds. A request whose body is decoded holds enough.
func (s *scope) holdStored(rec *store.Record) (release func(), err error) {
	if s.h.Memory == nil || s.decoded != nil {
		return func() {}, nil
	}
	return s.acquire(&s.h.Memory.Decoded, 2*weigh(rec))
}

// holdList waits until a list may be made, as a whole or one object after the other, the largest
// of which has a number of stored bytes. The returned function gives back what it holds.
func (s *scope) holdList(p *wire.Page, largest int, whole bool) (release func(), err error) {
	bytes := wire.WriterSize + wire.AheadSize + answerFactor*int64(largest)
	if whole {
		bytes = wire.WriterSize + answerFactor*int64(p.StoredSize())
	}
	if largest > heavyFrom && s.mayDecode() {
		bytes += heaviest * int64(largest) // which of them is the heaviest is not known
	}
	if p != nil && s.served.Version.FromHubAll != nil && !s.served.IsHub() {
		bytes += min(wire.Converting, heaviest*int64(p.StoredSize()))
	}
	return s.acquireAnswer(bytes)
}

// mayDecode reports whether a response is made from decoded objects: those of custom resources
// are compared with what is stored, rows of tables and other versions are made from them.
func (s *scope) mayDecode() bool {
	return s.served.Unstructured || s.enc.Format.Shape == wire.ShapeTable || !s.served.IsHub()
}

// acquire waits at a gate, and records how long the request holds the memory.
func (s *scope) acquire(gate *budget.Gate, bytes int64) (release func(), err error) {
	giveBack, err := gate.Acquire(s.ctx(), bytes, s.req.User.IsAdministrator())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return func() {
		giveBack()
		s.req.HeldMemory(bytes, time.Since(began))
	}, nil
}

// nextTurn waits for the turn of the next piece of a long response. If others wait for
// memory, its client gets little time to read the piece; who has once been given a
// deadline gets a new one for each piece.
func (s *scope) nextTurn() {
	s.req.TakeTurn()
	if s.hurried || s.h.Memory != nil && s.h.Memory.Answers.Contended() {
		s.hurried = true
		_ = http.NewResponseController(s.w).SetWriteDeadline(time.Now().Add(impatience))
	}
}

// endHolds gives back what the request holds.
func (s *scope) endHolds() {
	s.endDecoded()
	s.changed.end()
	for _, release := range s.release {
		release()
	}
	s.release = nil
	if s.unsent > 0 {
		s.h.Memory.Unsent.Return(s.unsent)
		s.unsent = 0
	}
}

// isLong reports whether a response of some objects, the largest of which has a number of
// stored bytes, is so long that it is made in turns.
func isLong(objects, largest int) bool {
	return objects >= wire.LongList || objects*largest >= wire.WriterSize
}
