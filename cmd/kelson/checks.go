package main

import (
	"cmp"
	"errors"
	"slices"
)

// check is a place in the order in which kube-apiserver looks at a command line,
// and in which it tells what is wrong with it.
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

	// From here on, what is wrong is found one after the other.
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
	lateGates // what only this server refuses
)

// mistakes are what is wrong with a command line.
type mistakes []mistake

type mistake struct {
	at  check
	err error
}

// refuse notes what is wrong, if anything is.
func (m *mistakes) refuse(at check, errs ...error) {
	for _, err := range errs {
		if err != nil {
			*m = append(*m, mistake{at, err})
		}
	}
}

// first returns where the first mistake is.
func (m mistakes) first() check {
	return slices.MinFunc(m, func(a, b mistake) int { return cmp.Compare(a.at, b.at) }).at
}

// err returns all mistakes as one error.
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
