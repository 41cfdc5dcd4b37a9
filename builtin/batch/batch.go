// Package batch is the API group batch: jobs and cron jobs. Start at Group;
// job_validation.go has the validation of job specs, which both kinds share.
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

// nonnegative validates a number that cannot be below zero, if it is there.
func nonnegative[T ~int32 | ~int64](value *T, path *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*value), path)
}
