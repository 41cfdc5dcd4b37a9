package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// mountableSecretsAnnotation is deprecated: it restricted the secrets of pods of an account.
const mountableSecretsAnnotation = "kubernetes.io/enforce-mountable-secrets"

// ServiceAccounts defines serviceaccounts.
func ServiceAccounts(tokens Tokens) resource.Definition {
	// References to secrets keep only their names.
	namesOnly := func(sa *corev1.ServiceAccount) {
		for i, s := range sa.Secrets {
			sa.Secrets[i] = corev1.ObjectReference{Name: s.Name}
		}
	}
	return resource.Definition{
		Resource:   "serviceaccounts",
		Kind:       "ServiceAccount",
		ShortNames: []string{"sa"},
		Namespaced: true,
		Versions:   []resource.Version{resource.VersionOf[corev1.ServiceAccount, corev1.ServiceAccountList, *corev1.ServiceAccount]("v1", nil)},
		Strategy: resource.Rules[*corev1.ServiceAccount]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			PrepareCreate: func(_ context.Context, sa *corev1.ServiceAccount) { namesOnly(sa) },
			PrepareUpdate: func(_ context.Context, sa, _ *corev1.ServiceAccount) { namesOnly(sa) },
			Validate:      func(context.Context, *corev1.ServiceAccount) field.ErrorList { return nil },
			Warnings: func(_ context.Context, sa, old *corev1.ServiceAccount) []string {
				_, has := sa.Annotations[mountableSecretsAnnotation]
				if old != nil {
					if _, had := old.Annotations[mountableSecretsAnnotation]; had {
						return nil
					}
				}
				if !has {
					return nil
				}
				return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", mountableSecretsAnnotation)}
			},
		}.Strategy(),
		Subresources: tokens.subresource(),
		Columns:      []resource.Column{rules.NameColumn(), rules.AgeColumn()},
		Cells: resource.CellsFunc(func(sa *corev1.ServiceAccount) []any {
			return []any{sa.Name, resource.Since(sa.CreationTimestamp.Time)}
		}),
	}
}
