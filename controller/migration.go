package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/apikeel/kelson/internal/loopback"
)

const (
	migrationController = "storage-version-migrator-controller"
	// migrationRunner is the field manager of writes to the status of CRDs.
	migrationRunner = "migration-runner-controller"
	// migrationPatience is how long a migration waits for a resource to be served.
	migrationPatience = time.Minute
	// migrationRetry is the interval of that wait.
	migrationRetry = 5 * time.Second
)

// Migrations runs StorageVersionMigrations: it rewrites every object of a resource, so
// that all are stored in the current storage version. One migration of a resource runs
// at a time, the oldest first.
//
// Each pass takes a migration one step further and records it in the status, so that
// another server can continue. The status update triggers the next pass.
func Migrations() Controller {
	return Controller{Name: migrationController, Alias: migrationController, Account: migrationController, Start: func(env *Env) Observer {
		m := &migrations{Env: env}
		m.queue = NewQueue(env, 1, func(ctx context.Context, _ struct{}) error { return m.pass(ctx) })
		return m
	}}
}

type migrations struct {
	*Env
	queue *Queue[struct{}]
}

// Observe implements Observer.
func (m *migrations) Observe(changes []Change) {
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Kind.Is(migrationv1.GroupName, "storageversionmigrations") }) {
		m.queue.Add(struct{}{})
	}
}

func is(svm *migrationv1.StorageVersionMigration, condition migrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(svm.Status.Conditions, string(condition))
}

func (m *migrations) pass(ctx context.Context) error {
	kind := m.Kind("storagemigration.k8s.io/v1", "StorageVersionMigration")
	if kind == nil {
		return nil
	}
	var all migrationv1.StorageVersionMigrationList
	if err := m.List(ctx, kind, "", &all); err != nil {
		return err
	}
	slices.SortFunc(all.Items, func(a, b migrationv1.StorageVersionMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	next := map[metav1.GroupResource]*migrationv1.StorageVersionMigration{}
	var failed error
	for i := range all.Items {
		svm := &all.Items[i]
		over := is(svm, migrationv1.MigrationSucceeded) || is(svm, migrationv1.MigrationFailed)
		running := is(svm, migrationv1.MigrationRunning)
		switch {
		case running && over:
			failed = errors.Join(failed, m.finish(ctx, kind, svm))
		case over:
		case next[svm.Spec.Resource] == nil, running && !is(next[svm.Spec.Resource], migrationv1.MigrationRunning):
			next[svm.Spec.Resource] = svm
		}
	}
	for _, svm := range next {
		if err := m.step(ctx, kind, svm); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", svm.Name, err))
		}
	}
	return failed
}

// step takes a migration one step further.
func (m *migrations) step(ctx context.Context, kind *Kind, svm *migrationv1.StorageVersionMigration) error {
	if !is(svm, migrationv1.MigrationRunning) {
		err := m.markDefinition(ctx, svm, "MigrationRunning", fmt.Sprintf("Migration %s is running", svm.Name), nil)
		if err != nil {
			return err
		}
		return m.set(ctx, kind, svm, running(0, 0, nil))
	}
	group, resource := svm.Spec.Resource.Group, svm.Spec.Resource.Resource
	target, ok := m.Feed.Served(group, resource)
	if !ok {
		if m.Now().Before(svm.CreationTimestamp.Add(migrationPatience)) {
			m.queue.AddAfter(struct{}{}, migrationRetry)
			return nil
		}
		return m.set(ctx, kind, svm, over(migrationv1.MigrationFailed, "resource does not exist in discovery"))
	}
	if svm.Status.ResourceVersion != "" {
		return m.rewrite(ctx, kind, svm, target)
	}
	verbs := []string{"update", "patch", "list"}
	if slices.ContainsFunc(verbs, func(v string) bool { return !target.Can(v) }) {
		return m.set(ctx, kind, svm, over(migrationv1.MigrationFailed, fmt.Sprintf(
			"resource %q does not support discovery operations: %v", fmt.Sprintf("%s/%s, Resource=%s", group, target.Version, resource), verbs)))
	}
	var now metav1.PartialObjectMetadataList
	err := m.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(target, "", ""), Accept: asList, Query: url.Values{"limit": {"1"}}, Into: &now})
	if err != nil {
		return err
	}
	if _, err := resourceversion.CompareResourceVersion(now.ResourceVersion, now.ResourceVersion); err != nil {
		return m.set(ctx, kind, svm, over(migrationv1.MigrationFailed, fmt.Sprintf(
			"latest resourceVersion for %s/%s, Resource=%s is not valid: %v", group, target.Version, resource, err)))
	}
	svm.Status.ResourceVersion = now.ResourceVersion
	return m.set(ctx, kind, svm)
}

// rewrite writes every object that was not written since the migration began.
func (m *migrations) rewrite(ctx context.Context, kind *Kind, svm *migrationv1.StorageVersionMigration, target *Kind) error {
	items, _, err := m.listAll(ctx, target)
	if err != nil {
		return err
	}
	total := len(items)
	items = slices.DeleteFunc(items, func(o metav1.PartialObjectMetadata) bool {
		newer, err := resourceversion.CompareResourceVersion(o.ResourceVersion, svm.Status.ResourceVersion)
		return err == nil && newer > 0
	})
	for i := range items {
		o := &items[i]
		err := m.do(ctx, loopback.Call{
			Method: http.MethodPatch, Path: path(target, o.Namespace, o.Name), ContentType: string(types.MergePatchType), Accept: asMetadata,
			Query: url.Values{"fieldManager": {migrationController}},
			Body: map[string]any{
				"apiVersion": target.APIVersion(), "kind": target.Kind, "metadata": map[string]string{"resourceVersion": o.ResourceVersion},
			},
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err): // written by others, or deleted
		case isTransient(err):
			return errors.Join(err, m.set(ctx, kind, svm, running(len(items)-i, total, err)))
		default:
			failure := fmt.Sprintf("%d/%d not yet migrated. migration encountered unhandled error: %s", len(items)-i, total, err)
			return m.set(ctx, kind, svm, running(len(items)-i, total, nil), over(migrationv1.MigrationFailed, failure))
		}
	}
	return m.set(ctx, kind, svm, running(0, total, nil), over(migrationv1.MigrationSucceeded, "Migration completed"))
}

// isTransient reports whether an error may go away on retry.
func isTransient(err error) bool {
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return true // no response
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

// finish records the end of a migration in the CRD, so that another one may begin.
func (m *migrations) finish(ctx context.Context, kind *Kind, svm *migrationv1.StorageVersionMigration) error {
	reason, message := "MigrationFailed", "The migration has failed"
	if is(svm, migrationv1.MigrationSucceeded) {
		reason, message = "MigrationSucceeded", "The migration has succeeded"
	}
	if err := m.markDefinition(ctx, svm, reason, message, new(is(svm, migrationv1.MigrationSucceeded))); err != nil {
		return err
	}
	return m.set(ctx, kind, svm, metav1.Condition{
		Type: string(migrationv1.MigrationRunning), Status: metav1.ConditionFalse, Reason: "MigrationCompleted", Message: "Migration completed",
		ObservedGeneration: svm.Generation,
	})
}

// markDefinition records in the status of the CRD, if the resource is a custom one, that a migration
// runs or how it has ended. After success, if the CRD is unchanged, storedVersions becomes
// the current storage version alone.
func (m *migrations) markDefinition(ctx context.Context, svm *migrationv1.StorageVersionMigration, reason, message string, succeeded *bool) error {
	definitions := m.Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	var crd apiextensionsv1.CustomResourceDefinition
	name := svm.Spec.Resource.Resource + "." + svm.Spec.Resource.Group
	if definitions == nil || svm.Spec.Resource.Group == "" {
		return nil
	}
	if err := m.Get(ctx, definitions, "", name, &crd); err != nil {
		return ignoreNotFound(err)
	}
	status := map[string]any{}
	migrating := apiextensionsv1.ConditionTrue
	if succeeded != nil {
		migrating = apiextensionsv1.ConditionFalse
		same := slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.StorageMigrating && c.ObservedGeneration == crd.Generation
		})
		if same {
			at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
			status["storedVersions"] = []string{crd.Spec.Versions[at].Name}
		}
		switch {
		case *succeeded && same:
			message += " and the stored versions have been updated"
		case *succeeded:
			message += " but the stored versions have not been updated due to a generation mismatch"
		}
	}
	status["conditions"] = []apiextensionsv1.CustomResourceDefinitionCondition{{
		Type: apiextensionsv1.StorageMigrating, Status: migrating, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(m.Now()), ObservedGeneration: crd.Generation,
	}}
	return m.Apply(ctx, definitions, "", name+"/status", migrationRunner, map[string]any{
		"apiVersion": definitions.APIVersion(), "kind": definitions.Kind, "status": status,
		"metadata": map[string]any{"name": name, "resourceVersion": crd.ResourceVersion},
	})
}

// set writes the status of a migration.
func (m *migrations) set(ctx context.Context, kind *Kind, svm *migrationv1.StorageVersionMigration, conditions ...metav1.Condition) error {
	for _, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(m.Now())
		meta.SetStatusCondition(&svm.Status.Conditions, c)
	}
	return mapOutdated(m.Update(ctx, kind, "", svm.Name, "status", svm, svm))
}

// running returns the condition Running with the progress of a migration.
func running(left, total int, err error) metav1.Condition {
	message := "The migration is running"
	switch {
	case left > 0:
		message += fmt.Sprintf(", %d/%d objects not yet migrated", left, total)
	case total > 0:
		message += fmt.Sprintf(", %d objects verified migrated", total)
	}
	if err != nil {
		message += fmt.Sprintf("; transient error: %s", err)
	}
	return metav1.Condition{Type: string(migrationv1.MigrationRunning), Status: metav1.ConditionTrue, Reason: "MigrationRunning", Message: message}
}

// over returns the condition of a migration that has ended.
func over(how migrationv1.MigrationConditionType, message string) metav1.Condition {
	return metav1.Condition{Type: string(how), Status: metav1.ConditionTrue, Reason: "StorageVersionMigration" + string(how), Message: message}
}
