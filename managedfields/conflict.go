package managedfields

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"

	"github.com/apikeel/kelson/resource"
)

// kubectl is the field manager of kubectl apply --server-side. Only this manager takes
// over fields from kubectl's client-side apply and updates its last-applied annotation.
const kubectl = "kubectl"

// lastAppliedAnnotation is where client-side kubectl apply keeps the configuration that
// was applied last.
const lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"

// conflictError makes the 409 error of an apply that would change fields of other
// managers.
func (a *application) conflictError(conflicts merge.Conflicts) error {
	names := map[string]string{}
	for _, e := range a.entries {
		name := fmt.Sprintf("%q", e.manager)
		if e.subresource != "" {
			name += fmt.Sprintf(" with subresource %q", e.subresource)
		}
		if !e.applied() {
			name += " using " + e.version
		}
		names[e.id()] = name
	}
	// Sorted by manager; within a manager in the order of structured-merge-diff.
	slices.SortStableFunc(conflicts, func(a, b merge.Conflict) int { return cmp.Compare(a.Manager, b.Manager) })
	var causes []metav1.StatusCause
	var lines []string
	for i, c := range conflicts {
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldManagerConflict, Field: c.Path.String(), Message: "conflict with " + names[c.Manager],
		})
		if i == 0 || conflicts[i-1].Manager != c.Manager {
			lines = append(lines, "conflicts with "+names[c.Manager]+":")
		}
		lines = append(lines, "- "+c.Path.String())
	}
	message := fmt.Sprintf("Apply failed with %d conflicts: %s", len(conflicts), strings.Join(lines, "\n"))
	if len(conflicts) == 1 {
		message = fmt.Sprintf("Apply failed with 1 conflict: conflict with %s: %v", names[conflicts[0].Manager], conflicts[0].Path)
	}
	return apierrors.NewApplyConflict(causes, message)
}

// withoutLastApplied drops conflicts about fields that client-side apply has set and that
// are unchanged since.
func (a *application) withoutLastApplied(conflicts merge.Conflicts) merge.Conflicts {
	set, err := a.lastAppliedFields()
	if err != nil {
		return conflicts
	}
	var left merge.Conflicts
	for _, c := range conflicts {
		if !set.Has(c.Path) {
			left = append(left, c)
		}
	}
	return left
}

// lastAppliedFields returns the fields of the last-applied annotation that still have the
// values in it.
func (a *application) lastAppliedFields() (*fieldpath.Set, error) {
	text := lastApplied(a.live)
	if text == "" {
		return nil, fmt.Errorf("no last applied annotation")
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal([]byte(text), obj); err != nil {
		return nil, err
	}
	if obj.GetAPIVersion() != a.m.version {
		return nil, fmt.Errorf("last applied in %s", obj.GetAPIVersion())
	}
	applied, err := a.types.parse(obj.Object)
	if err != nil {
		return nil, err
	}
	if err := a.before.Validate(); err != nil {
		return nil, err
	}
	set, err := applied.ToFieldSet()
	if err != nil {
		return nil, err
	}
	changes, err := applied.Compare(a.before)
	if err != nil {
		return nil, err
	}
	return set.Difference(changes.Modified).Difference(changes.Added).Difference(changes.Removed), nil
}

func lastApplied(obj resource.Object) string { return obj.GetAnnotations()[lastAppliedAnnotation] }

// setLastApplied writes a configuration into the last-applied annotation, unless it is
// too large.
func setLastApplied(obj resource.Object, config *unstructured.Unstructured) error {
	config = config.DeepCopy()
	annotations := config.GetAnnotations()
	delete(annotations, lastAppliedAnnotation)
	config.SetAnnotations(annotations)
	text, err := runtime.Encode(unstructured.UnstructuredJSONScheme, config)
	if err != nil {
		return err
	}
	annotations = obj.GetAnnotations()
	annotations[lastAppliedAnnotation] = string(text)
	if validation.ValidateAnnotationsSize(annotations) != nil {
		delete(annotations, lastAppliedAnnotation)
	}
	obj.SetAnnotations(annotations)
	return nil
}
