package main

import (
	"cmp"
	"errors"
	"slices"
)

// check is a position in the order in which kube-apiserver validates a command line,
// and reports its mistakes.
type check int

const (
	checkLivez check = iota
	checkInFlight
	checkRequestTimeout
	checkGoaway
	checkMinRequestTimeout
	checkStorageTimeout
	checkShutdown
	checkHSTS
	checkCORS
	checkVersion
	checkEtcd
	checkStorageBackend
	checkOverrides
	checkEncryption
	checkMediaType
	checkFairness
	checkServing
	checkAuthentication
	checkAuthorization
	checkAudit
	checkAdmission
	checkRuntimeConfig
	checkTokens
	checkMetrics
	checkPeers
	checkSigner
	checkLeadership
	checkServiceRanges
	checkNodePort
	checkFamily
	checkServers

	// From here on kube-apiserver reports one mistake at a time.
	lateServing
	lateFairness
	lateRuntimeConfig
	lateEgress
	lateTracing
	// Here the files of encryption, authentication, authorization and auditing are
	// read, and after lateEtcd those of admission.
	lateEtcd
	lateAggregation
	lateKubelets
	lateGates // only refused by this server
)

// mistakes collects the errors of a command line.
type mistakes []mistake

type mistake struct {
	at  check
	err error
}

// refuse adds errors that are not nil.
func (m *mistakes) refuse(at check, errs ...error) {
	for _, err := range errs {
		if err != nil {
			*m = append(*m, mistake{at, err})
		}
	}
}

// first returns the position of the first mistake.
func (m mistakes) first() check {
	return slices.MinFunc(m, func(a, b mistake) int { return cmp.Compare(a.at, b.at) }).at
}

// err joins all mistakes, in kube-apiserver's order.
func (m mistakes) err() error {
	slices.SortStableFunc(m, func(a, b mistake) int { return cmp.Compare(a.at, b.at) })
	var errs []error
	for _, one := range m {
		if one.at >= lateServing && len(errs) > 0 {
			break
		}
		errs = append(errs, one.err)
	}
	return errors.Join(errs...)
}
