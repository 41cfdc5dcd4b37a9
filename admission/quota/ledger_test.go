package quota

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// told is a Follower that tells of versions of a quota.
type told struct {
	reset   bool
	changes []resource.Change
}

func (f *told) Current() bool              { return false }
func (f *told) Wait(context.Context) error { return nil }

func (f *told) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	apply(f.reset, f.changes)
	f.reset, f.changes = false, nil
	return nil
}

// version adds a version of the quota to what is told.
func (f *told) version(version, pods string) {
	f.changes = append(f.changes, resource.Change{Object: &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q", ResourceVersion: version},
		Status:     corev1.ResourceQuotaStatus{Used: amount("pods", pods)},
	}})
}

// A recount erases no charge whose write may still be committed, and every other one.
func TestRecountKeepsWhatIsPending(t *testing.T) {
	of := account{"ns", "q"}
	var now time.Time
	// has and counted are of the quota when it is recounted, want is what it becomes.
	type step struct {
		do                 func(l *Ledger, f *told)
		has, counted, want string
		again              bool
	}
	var e *entry
	charged := func(l *Ledger, _ *told) { e = l.open(of, amount("pods", "2")) }
	passes := func(d time.Duration) func(*Ledger, *told) {
		return func(*Ledger, *told) { now = now.Add(d) }
	}
	begun := []step{
		{func(_ *Ledger, f *told) { f.reset = true; f.version("1", "3") }, "3", "1", "3", true},
		{passes(settleTime), "3", "1", "1", false},
	}
	for name, c := range map[string]struct {
		shared bool
		steps  []step
	}{
		"a charge until its write is committed": {false, []step{
			{charged, "7", "5", "7", true},
			{nil, "8", "5", "7", true},
			{func(l *Ledger, _ *told) { l.close(of, e, false) }, "7", "7", "7", false},
			{nil, "7", "6", "6", false},
		}},
		"no charge that was returned": {false, []step{
			{charged, "7", "5", "7", true},
			{func(l *Ledger, _ *told) { l.close(of, e, true) }, "7", "5", "5", false},
		}},
		"a charge of which nothing is known for some time": {false, []step{
			{charged, "7", "5", "7", true},
			{func(l *Ledger, _ *told) { l.doubt(of, e) }, "7", "5", "7", true},
			{passes(settleTime + 1), "7", "5", "5", false},
		}},
		"never less than is there": {false, []step{
			{charged, "3", "5", "5", true},
		}},
		"what another server has charged": {true, append(begun,
			step{func(_ *Ledger, f *told) {
				f.version("2", "1")
				f.version("3", "3")
				f.version("4", "2")
				f.version("5", "4")
			}, "9", "1", "5", true},
			step{passes(settleTime + 1), "4", "1", "1", false},
		)},
		"nothing of its own that is committed": {true, append(begun,
			step{func(l *Ledger, f *told) {
				charged(l, f)
				l.wrote(of, "2")
				f.version("2", "3")
				l.close(of, e, false)
			}, "3", "1", "1", false},
		)},
		"all for some time after versions were missed": {true, append(begun,
			step{func(_ *Ledger, f *told) { f.reset = true; f.version("9", "8") }, "8", "1", "8", true},
			step{passes(settleTime), "8", "1", "1", false},
		)},
	} {
		t.Run(name, func(t *testing.T) {
			now = time.Unix(1e9, 0)
			f := &told{}
			var others resource.Follower
			if c.shared {
				others = f
			}
			l := NewLedger(others, func() time.Time { return now })
			for i, s := range c.steps {
				if s.do != nil {
					s.do(l, f)
				}
				r := l.Recount("ns", "q")
				used, again, err := r.Used(t.Context(), amount("pods", s.has), amount("pods", s.counted))
				r.End()
				got := used["pods"]
				if err != nil || got.String() != s.want || (again > 0) != s.again {
					t.Errorf("step %d: used is %s (again after %v, %v), want %s, again %v", i, got.String(), again, err, s.want, s.again)
				}
			}
			if e != nil {
				l.close(of, e, false)
			}
			now = now.Add(2 * settleTime)
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.sweepLocked(); len(l.accounts) > 0 && !c.shared {
				t.Errorf("the ledger still knows of %d quotas", len(l.accounts))
			}
		})
	}
}

// A charge that is made, or whose write is committed, while objects are counted belongs to the recount.
func TestRecountHasChargesMadeMeanwhile(t *testing.T) {
	l, of := NewLedger(nil, nil), account{"ns", "q"}
	before := l.open(of, amount("pods", "1"))
	r := l.Recount("ns", "q")
	defer r.End()
	l.close(of, before, false)
	during := l.open(of, amount("pods", "2"))
	l.close(of, during, false)
	used, _, err := r.Used(t.Context(), amount("pods", "9"), amount("pods", "4"))
	if got := used["pods"]; err != nil || got.String() != "7" {
		t.Errorf("used is %s (%v), want 7: 4 that were counted, and 3 that may not have been", got.String(), err)
	}
}
