// Package batch is the API group batch: work that comes to an end. A file is a
// kind; what a job may be, which cron jobs share, is in job_validation.go.
package batch

import (
	batchv1 "k8s.io/api/batch/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: batchv1.GroupName, Resources: []resource.Definition{CronJobs(), Jobs()}}
}

// nonnegative judges a number that cannot be below zero, if it is there.
func nonnegative[T ~int32 | ~int64](value *T, path *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*value), path)
}
