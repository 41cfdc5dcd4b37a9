package apiserverinternal

import (
	"slices"
	"time"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Agree sets commonEncodingVersion and the condition AllEncodingVersionsEqual.
func Agree(v *storageVersion, now time.Time) {
	s := &v.Status
	was := s.CommonEncodingVersion
	s.CommonEncodingVersion = nil
	if len(s.StorageVersions) > 0 {
		first := s.StorageVersions[0].EncodingVersion
		if !slices.ContainsFunc(s.StorageVersions, func(o internalv1alpha1.ServerStorageVersion) bool { return o.EncodingVersion != first }) {
			s.CommonEncodingVersion = &first
		}
	}
	c := internalv1alpha1.StorageVersionCondition{
		Type: internalv1alpha1.AllEncodingVersionsEqual, Status: internalv1alpha1.ConditionFalse, ObservedGeneration: v.Generation,
		LastTransitionTime: metav1.NewTime(now), Reason: "CommonEncodingVersionUnset", Message: "Common encoding version unset",
	}
	if s.CommonEncodingVersion != nil {
		c.Status, c.Reason, c.Message = internalv1alpha1.ConditionTrue, "CommonEncodingVersionSet", "Common encoding version set"
	}
	i := slices.IndexFunc(s.Conditions, func(o internalv1alpha1.StorageVersionCondition) bool { return o.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	// A change of the common version is a transition even if the condition stays True.
	moved := was != nil && s.CommonEncodingVersion != nil && *was != *s.CommonEncodingVersion
	if s.Conditions[i].Status == c.Status && !moved {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}
