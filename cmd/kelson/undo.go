package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/history"
)

func newUndo(s streams) *cobra.Command {
	u := &undo{past: past{s: s}, uids: map[types.UID]types.UID{}, owners: map[types.UID]bool{}}
	var to string
	cmd := &cobra.Command{
		Use:   "undo [KIND [NAME]] --to MOMENT",
		Short: "Bring an object or a namespace back to what it was",
		Long: `Bring an object, all objects of a kind, or everything in a namespace back to what it was at a
moment. It first shows what it would do, and asks. It writes through the API as you, with
your rights and through admission, each write after a dry run. A deleted namespace comes back
with its objects; what cannot come back is listed. Status is left to controllers.`,
		Example: `  kelson undo configmap web --to 14:05
  kelson undo -n shop --to 10m                    # also if the namespace was deleted
  kelson undo deployments -n shop -l app=web --to 81234 --yes
  kelson undo -n shop --to 14:05 --dry-run        # only show what it would do`,
		Args: kindAndName(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := u.connect()
			if err != nil {
				return usageError{err}
			}
			switch {
			case to == "":
				return usage(cmd, "--to is missing: the moment to go back to")
			case len(args) == 0 && !cmd.Flags().Changed("namespace") && !u.all:
				return usage(cmd, "give a KIND and a NAME, or a namespace with -n, or -A")
			case u.output != "table" && !u.yes && !u.only:
				return usage(cmd, "--output=%s needs --yes or --dry-run, since nobody is asked then", u.output)
			}
			q, err := u.question(t, args)
			if err != nil {
				return err
			}
			if err := setMoments(cmd, q, "now", to); err != nil {
				return err
			}
			u.t, u.q = t, q
			return u.run(cmd.Context(), len(args) == 0 && !u.all)
		},
	}
	u.bindScope(cmd)
	cmd.Flags().StringVar(&to, "to", "", "`moment` to go back to: a time (14:05), a revision (81234), or how long ago (10m)")
	cmd.Flags().BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&u.only, "dry-run", false, "only show what it would do")
	return cmd
}

// undo brings objects back to what they were.
type undo struct {
	past
	yes, only bool
	t         *target
	q         url.Values
	mu        sync.Mutex // guards uids and owners while steps are done
	// uids maps the UIDs that objects had to those that they have now.
	uids map[types.UID]types.UID
	// owners tells of owners that were looked up whether they are there.
	owners map[types.UID]bool
}

// undoStep is a write that brings one object back.
type undoStep struct {
	history.Ref
	// Action is create, update or delete; skip for what cannot come back.
	Action string `json:"action"`
	// Conflicts are the writers, besides the first, whose later changes are undone too.
	Conflicts []string `json:"conflicts,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	// Result is done, would be done, or failed.
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`

	fields []history.FieldChange
	more   bool // there are fields that are not in fields
	// ownStatus: status is written apart from the rest, by who makes it true.
	ownStatus bool
	rank      int                        // steps of a lower one come first
	was, now  *unstructured.Unstructured // as it was, and as it is; nil if it was not or is not
}

// undoManager is the field manager of the writes.
const undoManager = "kelson-undo"

// run makes the plan, shows it, asks, and writes.
func (u *undo) run(ctx context.Context, wholeNamespace bool) error {
	if wholeNamespace {
		if err := u.awaitEndOf(ctx, u.t.namespace); err != nil {
			return err
		}
	}
	answer, err := differences(ctx, u.t, withWriters(u.q))
	if err != nil {
		return err
	}
	steps, err := u.plan(answer)
	if err != nil {
		return err
	}
	if u.output == "table" {
		if err := u.printPlan(steps, answer.Hidden); err != nil || len(steps) == 0 {
			return err
		}
	}
	if !u.only && !u.yes {
		fmt.Fprint(u.s.err, "Undo this? [y/N] ")
		line, _ := bufio.NewReader(u.s.in).ReadString('\n')
		if word := strings.ToLower(strings.TrimSpace(line)); word != "y" && word != "yes" {
			return errors.New("nothing was done")
		}
	}
	failed := u.apply(ctx, steps)
	// Objects of a definition that has come back can be read only now.
	if slices.ContainsFunc(steps, func(s *undoStep) bool { return s.first() && s.Resource != "namespaces" && s.Result == "done" }) {
		more, err := u.planAgain(ctx, steps)
		if err != nil {
			return err
		}
		failed += u.apply(ctx, more)
		steps = append(steps, more...)
	}
	if u.output != "table" {
		if err := u.print(u.s.out, map[string]any{"from": answer.From, "to": answer.To, "steps": steps, "hidden": answer.Hidden}, nil); err != nil {
			return err
		}
	} else {
		u.printResult(steps)
	}
	if failed > 0 {
		return errShown
	}
	return nil
}

// planAgain returns the steps that were not there when the first plan was made.
func (u *undo) planAgain(ctx context.Context, known []*undoStep) ([]*undoStep, error) {
	answer, err := differences(ctx, u.t, u.q)
	if err != nil {
		return nil, err
	}
	steps, err := u.plan(answer)
	return slices.DeleteFunc(steps, func(s *undoStep) bool {
		return s.Action == "skip" || slices.ContainsFunc(known, func(k *undoStep) bool { return k.Ref == s.Ref })
	}), err
}

func withWriters(q url.Values) url.Values {
	q.Set("writers", "true")
	return q
}

// namespaceEnd is how long undo waits for a namespace that is being deleted.
const namespaceEnd = 2 * time.Minute

// awaitEndOf waits for a namespace that is being deleted to be gone: nothing can be made in
// it before.
func (u *undo) awaitEndOf(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, namespaceEnd)
	defer cancel()
	ref := &history.Ref{Version: "v1", Resource: "namespaces", Kind: "Namespace", Name: name}
	for said := false; ; {
		now, err := u.send(ctx, http.MethodGet, ref, nil, nil)
		if err != nil || now.GetDeletionTimestamp() == nil {
			return nil // or the plan says what is wrong
		}
		if !said {
			fmt.Fprintf(u.s.err, "Waiting for the end of namespace %s, which is being deleted.\n", clean(name))
			said = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("namespace %s is still being deleted; try again when it is gone", name)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// plan makes the steps out of what differs between now and then.
func (u *undo) plan(answer *history.Differences) ([]*undoStep, error) {
	var steps []*undoStep
	for i := range answer.Items {
		item := &answer.Items[i]
		switch item.Group + "/" + item.Resource {
		case "/events", "events.k8s.io/events", "coordination.k8s.io/leases", "networking.k8s.io/ipaddresses":
			continue // what happened, who is there now, and what the server makes for services
		}
		step := &undoStep{Ref: item.Ref, Action: item.Verb}
		for _, part := range []struct {
			text json.RawMessage
			to   **unstructured.Unstructured
		}{{item.Before, &step.now}, {item.After, &step.was}} {
			if part.text == nil {
				continue
			}
			*part.to = &unstructured.Unstructured{}
			if err := (*part.to).UnmarshalJSON(part.text); err != nil {
				return nil, err
			}
		}
		if step.was != nil && step.now != nil {
			u.uids[step.was.GetUID()] = step.now.GetUID()
		}
		if len(item.Writers) > 1 {
			for _, m := range item.Writers[1:] {
				if m.Name != item.Writers[0].Name && !slices.Contains(step.Conflicts, m.Name) && m.Name != undoManager {
					step.Conflicts = append(step.Conflicts, m.Name)
				}
			}
		}
		step.fields, step.more, step.ownStatus = item.Fields, item.More, item.StatusApart
		step.refuse(item)
		steps = append(steps, step)
	}
	steps = slices.DeleteFunc(steps, u.isSame)
	sortSteps(steps)
	return steps, nil
}

// isSame reports whether an object is what it was but for its status, and for what an object
// gets that has come back: its UID, its time of creation, and the UIDs of its owners.
func (u *undo) isSame(s *undoStep) bool {
	if s.Action != "update" || s.more {
		return false
	}
	owners := func(obj *unstructured.Unstructured) []metav1.OwnerReference {
		all := obj.GetOwnerReferences()
		for i := range all {
			if uid, ok := u.uids[all[i].UID]; ok {
				all[i].UID = uid
			}
		}
		return all
	}
	same := reflect.DeepEqual(owners(s.was), owners(s.now))
	return !slices.ContainsFunc(s.fields, func(f history.FieldChange) bool {
		return !(s.ownStatus && isBelow(f.Path, "status")) && f.Path != "metadata.uid" && f.Path != "metadata.creationTimestamp" && !(same && isBelow(f.Path, "metadata.ownerReferences"))
	})
}

// refuse makes a skip of a step that cannot succeed.
func (s *undoStep) refuse(item *history.Difference) {
	skip := func(why string) { s.Action, s.Notes = "skip", append(s.Notes, why) }
	switch {
	case item.Error != "":
		skip("it cannot be read: " + item.Error)
	case s.was != nil && s.was.GetDeletionTimestamp() != nil:
		skip("it was being deleted at that moment")
	case s.now != nil && s.now.GetDeletionTimestamp() != nil:
		skip("it is being deleted; try again when it is gone")
	case s.was != nil && s.Group == "" && s.Resource == "secrets" && s.was.Object["type"] == "kubernetes.io/service-account-token" && s.now == nil:
		skip("a token of a service account does not come back: it was of the account that is gone")
	}
}

// sortSteps orders steps so that what others need comes first: namespaces, definitions,
// owners, and deletions last.
func sortSteps(steps []*undoStep) {
	byUID := map[types.UID]*undoStep{}
	for _, s := range steps {
		if s.was != nil {
			byUID[s.was.GetUID()] = s
		}
	}
	depths := map[*undoStep]int{}
	var depth func(s *undoStep, seen int) int
	depth = func(s *undoStep, seen int) int {
		if d, ok := depths[s]; ok || seen > 100 {
			return d
		}
		d := 0
		if s.was != nil {
			for _, owner := range s.was.GetOwnerReferences() {
				if above := byUID[owner.UID]; above != nil && above != s {
					d = max(d, depth(above, seen+1)+1)
				}
			}
		}
		depths[s] = d
		return d
	}
	for _, s := range steps {
		switch {
		case s.Action == "skip":
			s.rank = 1 << 20
		case s.Action == "delete":
			s.rank = 1 << 19
		case s.first():
			s.rank = -3
		case s.Group == "" && (s.Resource == "serviceaccounts" || s.Resource == "configmaps" || s.Resource == "secrets") && depth(s, 0) == 0:
			s.rank = -1
		default:
			s.rank = depth(s, 0)
		}
	}
	slices.SortStableFunc(steps, func(a, b *undoStep) int { return a.rank - b.rank })
}

// first reports whether other objects can be made only when this one is there.
func (s *undoStep) first() bool {
	return s.Action == "create" && (s.Group == "" && s.Resource == "namespaces" || s.Group == "apiextensions.k8s.io" && s.Resource == "customresourcedefinitions")
}

// apply writes: first what others need, then, after a dry run of all, the others.
func (u *undo) apply(ctx context.Context, steps []*undoStep) (failed int) {
	absent := map[string]bool{} // namespaces that are not there in a dry run
	for _, s := range steps {
		if !s.first() {
			continue
		}
		err := u.write(ctx, s, true)
		if err == nil && !u.only {
			err = u.write(ctx, s, false)
		}
		switch {
		case err != nil:
			s.fail(err)
		case u.only:
			s.Result = "would be done"
		default:
			s.Result = "done"
		}
		if s.Resource == "namespaces" && (u.only || err != nil) {
			absent[s.Name] = true
		}
	}
	u.each(ctx, steps, func(s *undoStep) {
		if s.Action == "skip" || s.first() {
			return
		}
		if s.Namespace != "" && absent[s.Namespace] {
			s.Notes = append(s.Notes, "there is no dry run, since its namespace is not there yet")
			s.Result = "would be done"
			if !u.only {
				s.fail(errors.New("its namespace could not be made"))
			}
			return
		}
		s.Result = "would be done"
		if err := u.write(ctx, s, true); err != nil {
			s.fail(err)
		}
	})
	if !u.only {
		u.each(ctx, steps, func(s *undoStep) {
			if s.Result != "would be done" {
				return
			}
			s.Result = "done"
			if err := u.write(ctx, s, false); err != nil {
				s.fail(err)
			}
		})
	}
	for _, s := range steps {
		if s.Result == "failed" {
			failed++
		}
	}
	return failed
}

func (s *undoStep) fail(err error) { s.Result, s.Error = "failed", err.Error() }

// undoWriters is how many writes are under way at a time.
const undoWriters = 16

// each calls f for steps, several at a time, but for those of one rank only when those of
// the ranks before have ended.
func (u *undo) each(ctx context.Context, steps []*undoStep, f func(*undoStep)) {
	for len(steps) > 0 {
		n := 1
		for n < len(steps) && steps[n].rank == steps[0].rank {
			n++
		}
		var group sync.WaitGroup
		next := make(chan *undoStep)
		for range min(n, undoWriters) {
			group.Go(func() {
				for s := range next {
					if ctx.Err() != nil {
						s.fail(ctx.Err())
					} else {
						f(s)
					}
				}
			})
		}
		for _, s := range steps[:n] {
			next <- s
		}
		close(next)
		group.Wait()
		steps = steps[n:]
	}
}

// write does one step.
func (u *undo) write(ctx context.Context, s *undoStep, dry bool) error {
	query := url.Values{"fieldManager": {undoManager}}
	if dry {
		query.Set("dryRun", metav1.DryRunAll)
	}
	switch s.Action {
	case "delete":
		uid, version := s.now.GetUID(), s.now.GetResourceVersion()
		background := metav1.DeletePropagationBackground
		options := &metav1.DeleteOptions{
			TypeMeta:      metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background,
		}
		if dry {
			options.DryRun = []string{metav1.DryRunAll} // where there is a body, the query does not count
		}
		_, err := u.send(ctx, http.MethodDelete, &s.Ref, query, options)
		if apierrors.IsNotFound(err) {
			return nil // the garbage collector was first
		}
		return err
	case "update":
		return u.update(ctx, s, s.now, query, dry)
	}
	return u.create(ctx, s, query, dry)
}

// update replaces an object with what it was, if it is still what it is in the plan.
func (u *undo) update(ctx context.Context, s *undoStep, now *unstructured.Unstructured, query url.Values, dry bool) error {
	obj := s.was.DeepCopy()
	obj.SetResourceVersion(now.GetResourceVersion())
	obj.SetUID(now.GetUID())
	obj.SetCreationTimestamp(now.GetCreationTimestamp())
	obj.SetGeneration(now.GetGeneration())
	u.mapOwners(ctx, s, obj, dry)
	done, err := u.send(ctx, http.MethodPut, &s.Ref, query, obj)
	if err == nil && !dry {
		u.cameBack(s.was.GetUID(), done.GetUID())
	}
	return err
}

// cameBack notes the UID that an object has now.
func (u *undo) cameBack(was, now types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uids[was] = now
}

// nowOf returns the UID that an object has now.
func (u *undo) nowOf(was types.UID) (now types.UID, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, ok = u.uids[was]
	return now, ok
}

// create makes an object that was deleted.
func (u *undo) create(ctx context.Context, s *undoStep, query url.Values, dry bool) error {
	obj := s.was.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"} {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
	}
	u.mapOwners(ctx, s, obj, dry)
	done, err := u.send(ctx, http.MethodPost, &s.Ref, query, obj)
	if apierrors.IsInvalid(err) && s.Group == "" && s.Resource == "services" && strings.Contains(err.Error(), "already allocated") {
		s.note("an address or a port that it had is taken, so it gets another: " + addresses(obj))
		dropAddresses(obj)
		done, err = u.send(ctx, http.MethodPost, &s.Ref, query, obj)
	}
	if apierrors.IsAlreadyExists(err) && !s.madeByController() {
		return fmt.Errorf("somebody has created it since the plan was made; plan again to see what is different: %w", err)
	}
	if apierrors.IsAlreadyExists(err) {
		now, err := u.send(ctx, http.MethodGet, &s.Ref, nil, nil)
		if err != nil {
			return err
		}
		return u.update(ctx, s, now, query, dry)
	}
	if err != nil || dry {
		return err
	}
	u.cameBack(s.was.GetUID(), done.GetUID())
	if s.first() && s.Resource != "namespaces" {
		return u.awaitEstablished(ctx, s)
	}
	return nil
}

// madeByController reports whether controllers make the object in every namespace.
func (s *undoStep) madeByController() bool {
	return s.Group == "" && (s.Resource == "serviceaccounts" && s.Name == "default" || s.Resource == "configmaps" && s.Name == "kube-root-ca.crt")
}

func (s *undoStep) note(text string) {
	if !slices.Contains(s.Notes, text) {
		s.Notes = append(s.Notes, text)
	}
}

// addresses are those of a service that the server may have given to it.
func addresses(obj *unstructured.Unstructured) string {
	ip, _, _ := unstructured.NestedString(obj.Object, "spec", "clusterIP")
	return ip
}

// dropAddresses removes the addresses and ports of a service that the server gives.
func dropAddresses(obj *unstructured.Unstructured) {
	for _, field := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
		unstructured.RemoveNestedField(obj.Object, "spec", field)
	}
	ports, _, _ := unstructured.NestedSlice(obj.Object, "spec", "ports")
	for _, port := range ports {
		if port, ok := port.(map[string]any); ok {
			delete(port, "nodePort")
		}
	}
	if len(ports) > 0 {
		_ = unstructured.SetNestedSlice(obj.Object, ports, "spec", "ports")
	}
}

// mapOwners sets the UIDs of owners to those that they have now. An owner that is not there
// is left out: the garbage collector would delete the object again.
func (u *undo) mapOwners(ctx context.Context, s *undoStep, obj *unstructured.Unstructured, dry bool) {
	owners := obj.GetOwnerReferences()
	if len(owners) == 0 || dry {
		return
	}
	kept := owners[:0]
	for _, owner := range owners {
		if uid, ok := u.nowOf(owner.UID); ok {
			owner.UID = uid
		} else if !u.exists(ctx, s, &owner) {
			s.note(fmt.Sprintf("its owner %s %s is not there, so the reference is left out", owner.Kind, owner.Name))
			continue
		}
		kept = append(kept, owner)
	}
	obj.SetOwnerReferences(kept)
}

// exists reports whether an owner is there with its UID. An owner that cannot be looked up
// is taken to be there.
func (u *undo) exists(ctx context.Context, s *undoStep, owner *metav1.OwnerReference) bool {
	u.mu.Lock()
	known, ok := u.owners[owner.UID]
	u.mu.Unlock()
	if ok {
		return known
	}
	there := true
	kind := strings.ToLower(owner.Kind)
	if group, _, ok := strings.Cut(owner.APIVersion, "/"); ok {
		kind += "." + group
	}
	if m, err := u.t.resource(kind); err == nil {
		ref := &history.Ref{Group: m.Resource.Group, Version: m.Resource.Version, Resource: m.Resource.Resource, Name: owner.Name}
		if m.Scope.Name() == "namespace" {
			ref.Namespace = s.Namespace
		}
		now, err := u.send(ctx, http.MethodGet, ref, nil, nil)
		there = err == nil && now.GetUID() == owner.UID || err != nil && !apierrors.IsNotFound(err)
	}
	u.mu.Lock()
	u.owners[owner.UID] = there
	u.mu.Unlock()
	return there
}

// awaitEstablished waits until objects of a definition can be made.
func (u *undo) awaitEstablished(ctx context.Context, s *undoStep) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		now, err := u.send(ctx, http.MethodGet, &s.Ref, nil, nil)
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not established: %w", s.Name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// send sends a request about an object to the API.
func (u *undo) send(ctx context.Context, method string, ref *history.Ref, query url.Values, body any) (*unstructured.Unstructured, error) {
	path := []string{"/apis", ref.Group, ref.Version}
	if ref.Group == "" {
		path = []string{"/api", ref.Version}
	}
	if ref.Namespace != "" {
		path = append(path, "namespaces", url.PathEscape(ref.Namespace))
	}
	path = append(path, ref.Resource)
	if method != http.MethodPost {
		path = append(path, url.PathEscape(ref.Name))
	}
	req := u.t.client.Verb(method).RequestURI(strings.Join(path, "/") + "?" + query.Encode())
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req = req.Body(text).SetHeader("Content-Type", "application/json")
	}
	result := req.SetHeader("Accept", "application/json").Do(ctx)
	text, err := result.Raw()
	if err != nil {
		return nil, apiError(err, text)
	}
	out := &unstructured.Unstructured{}
	return out, out.UnmarshalJSON(text)
}

// apiError is the error of the API with the server's own words.
func apiError(err error, text []byte) error {
	var said metav1.Status
	if json.Unmarshal(text, &said) == nil && said.Kind == "Status" && said.Message != "" {
		return &apierrors.StatusError{ErrStatus: said}
	}
	return err
}

func (u *undo) printPlan(steps []*undoStep, hidden []string) error {
	if len(steps) == 0 {
		fmt.Fprintln(u.s.err, "There is nothing to undo.")
		noteHidden(u.s.err, hidden)
		return nil
	}
	counts := map[string]int{}
	err := u.print(u.s.out, nil, func(w io.Writer) error {
		fmt.Fprintln(w, "ACTION\tOBJECT\tALSO UNDOES CHANGES BY\tNOTE")
		for _, s := range steps {
			counts[s.Action]++
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Action, objectName(&s.Ref), clean(strings.Join(s.Conflicts, ",")), clean(strings.Join(s.Notes, "; ")))
		}
		return nil
	})
	fmt.Fprintf(u.s.err, "%d to create, %d to update, %d to delete, %d cannot come back.\n", counts["create"], counts["update"], counts["delete"], counts["skip"])
	noteHidden(u.s.err, hidden)
	return err
}

func (u *undo) printResult(steps []*undoStep) {
	counts := map[string]int{}
	for _, s := range steps {
		counts[s.Result]++
		for _, note := range s.Notes {
			if s.Action != "skip" {
				fmt.Fprintf(u.s.err, "%s: %s\n", objectName(&s.Ref), clean(note))
			}
		}
		if s.Error != "" {
			fmt.Fprintf(u.s.err, "%s: failed to %s: %s\n", objectName(&s.Ref), s.Action, clean(s.Error))
		}
	}
	if u.only {
		fmt.Fprintf(u.s.err, "%d would be done, %d would fail.\n", counts["would be done"], counts["failed"])
		return
	}
	fmt.Fprintf(u.s.err, "%d done, %d failed.\n", counts["done"], counts["failed"])
}
