package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
)

// topicCases are topics with the records that belong to them.
func topicCases(r *Resource) map[Topic]Match {
	return map[Topic]Match{
		{Key: r.Key("default", "p1")}:                             func(rec *Record) bool { return rec.Key == r.Key("default", "p1") },
		{Namespace: "default"}:                                    func(rec *Record) bool { return rec.Namespace == "default" },
		{Namespace: "other"}:                                      func(rec *Record) bool { return rec.Namespace == "other" },
		{Equals: Equals{Attribute{Field: "spec.nodeName"}, "n1"}}: func(rec *Record) bool { return r.Fields(rec).Get("spec.nodeName") == "n1" },
		{Equals: Equals{Attribute{Label: "app"}, "a"}}:            func(rec *Record) bool { return rec.Labels().Get("app") == "a" },
		{Equals: Equals{Attribute{Label: "app"}, "none"}}:         func(rec *Record) bool { return rec.Labels().Get("app") == "none" },
	}
}

// TestWatchAboutTopicSeesWhatOthersSee writes at random, trims the log, and compares what
// watchers with a topic get with what those without one get. Some look rarely: what they
// have not looked at is dropped from the log meanwhile.
func TestWatchAboutTopicSeesWhatOthersSee(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	start := mustCreate(t, r, newPod("first", "")).Revision
	type pair struct {
		about       Topic
		with, plain *Watcher
		got, want   []string
		rarely      bool
	}
	var pairs []*pair
	poll := func(w *Watcher, to *[]string) {
		t.Helper()
		for {
			events, more, err := w.Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range events {
				*to = append(*to, fmt.Sprint(ev.Type, ev.Record.Key, ev.Record.Revision))
			}
			select {
			case <-more:
			default:
				return
			}
		}
	}
	begin := func(about Topic, match Match, rarely bool) {
		p := &pair{about: about, rarely: rarely}
		for _, w := range []**Watcher{&p.with, &p.plain} {
			var err error
			if *w, err = r.Watch(t.Context(), start, match); err != nil {
				t.Fatal(err)
			}
			t.Cleanup((*w).Close)
		}
		p.with.About(about)
		pairs = append(pairs, p)
	}
	for about, match := range topicCases(r) {
		begin(about, match, false)
		begin(about, match, true)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		pod := newPod(fmt.Sprint("p", random.IntN(5)), fmt.Sprint("n", random.IntN(3)), "app", string(rune('a'+random.IntN(3))))
		if random.IntN(3) == 0 {
			pod.Namespace = "other"
		}
		key := r.Key(pod.Namespace, pod.Name)
		_, err := r.Create(t.Context(), key, pod, 0)
		switch {
		case err == nil:
		case random.IntN(3) == 0:
			_, err = r.Delete(t.Context(), key, func(*Record) error { return nil })
		default:
			_, err = r.Update(t.Context(), key, func(*Record, resource.Object) (resource.Object, time.Duration, error) { return pod, 0, nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		if random.IntN(10) == 0 {
			s.trim()
		}
		if i == 1500 {
			for about, match := range topicCases(r) {
				begin(about, match, false)
			}
		}
		for _, p := range pairs {
			if !p.rarely || random.IntN(200) == 0 {
				poll(p.with, &p.got)
			}
			poll(p.plain, &p.want)
		}
	}
	if err := s.current(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs {
		poll(p.with, &p.got)
		poll(p.plain, &p.want)
		if !slices.Equal(p.got, p.want) {
			t.Errorf("%+v: got %d events, want %d", p.about, len(p.got), len(p.want))
		}
		if p.with.Revision() != p.plain.Revision() {
			t.Errorf("%+v is at %d, want %d", p.about, p.with.Revision(), p.plain.Revision())
		}
		p.with.Close()
	}
	if n, m := len(r.log.topics), len(r.log.attributes); n+m > 0 {
		t.Errorf("%d topics and %d attributes are left of watches that have ended", n, m)
	}
}

// TestWatchAboutTopicIsWokenOnlyByIt, also when the log ends.
func TestWatchAboutTopicIsWokenOnlyByIt(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	start := mustCreate(t, r, newPod("first", "")).Revision
	w, err := r.Watch(t.Context(), start, func(rec *Record) bool { return rec.Name == "mine" })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.About(Topic{Key: r.Key("default", "mine")})
	_, more, err := w.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, r, newPod("other", ""))
	if err := s.current(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-more:
		t.Error("woken by another object")
	default:
	}
	mine := mustCreate(t, r, newPod("mine", "")).Revision
	wait(t, more)
	if got, want := collect(t, w, 1), []string{fmt.Sprintf("ADDED mine@%d", mine)}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, more, err = w.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Forget(r.def)
	wait(t, more)
	if _, _, err := w.Poll(t.Context()); err != ErrGone {
		t.Errorf("got %v after the end, want %v", err, ErrGone)
	}
}

// wait waits until a channel is closed.
func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case <-c:
	case <-ctx.Done():
		t.Fatal("not woken")
	}
}

// BenchmarkEventAmongWatches is one event while many watches wait that it is not for,
// each of another object: with topics, and without.
func BenchmarkEventAmongWatches(b *testing.B) {
	for _, narrow := range []bool{true, false} {
		b.Run(fmt.Sprintf("10000/topics=%v", narrow), func(b *testing.B) {
			s, _ := openStore(b)
			r := s.Resource(podDefinition())
			start := mustCreate(b, r, newPod("first", "")).Revision
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan struct{})
			const watches = 10_000
			for i := range watches {
				name := fmt.Sprint("watched", i)
				w, err := r.Watch(ctx, start, func(rec *Record) bool { return rec.Name == name })
				if err != nil {
					b.Fatal(err)
				}
				if narrow {
					w.About(Topic{Key: r.Key("default", name)})
				}
				go func() {
					defer func() { ended <- struct{}{} }()
					defer w.Close()
					for {
						_, more, err := w.Poll(ctx)
						if err != nil {
							return
						}
						select {
						case <-more:
						case <-ctx.Done():
							return
						}
					}
				}()
			}
			i := 0
			for b.Loop() {
				i++
				mustCreate(b, r, newPod(fmt.Sprint("p", i), ""))
				if err := s.current(ctx); err != nil {
					b.Fatal(err)
				}
			}
			cancel()
			for range watches {
				<-ended
			}
		})
	}
}
