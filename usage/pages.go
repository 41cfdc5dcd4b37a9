package usage

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
)

// Paths of the pages. Whoever may get a path sees users, user agents and priority levels
// there; what is about a resource or a namespace only who may list it.
const (
	TopPath      = "/debug/kelson/top"
	StormPath    = "/debug/kelson/storm"
	FindingsPath = "/debug/kelson/findings"
)

// ServeTop returns the page of Top.
func (m *Meter) ServeTop(viewer func(r *http.Request) Viewer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := ParseQuery(request.QueryOf(r).Values())
		var top *Top
		if err == nil {
			top, err = m.Top(q, viewer(r))
		}
		if err != nil {
			refused := apierrors.NewBadRequest(err.Error())
			if errors.Is(err, errRights) {
				refused.ErrStatus.Code, refused.ErrStatus.Reason = http.StatusForbidden, "Forbidden"
			}
			err = refused
		}
		status.WriteJSON(w, r, top, err)
	})
}

// ServeStorm returns the page of Storm.
func (m *Meter) ServeStorm(viewer func(r *http.Request) Viewer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { status.WriteJSON(w, r, m.Storm(viewer(r)), nil) })
}

// maxRows bounds the rows of an answer.
const maxRows = 500

// ParseQuery reads a query from the parameters of a URL: by, since, sort, rows, and the
// names of dimensions.
func ParseQuery(values url.Values) (q Query, err error) {
	for name, all := range values {
		value := all[0]
		switch d := slices.Index(Dimensions(), name); {
		case name == "timeout", name == "pretty": // of every request
		case name == "by":
			if q.By = Dimension(slices.Index(Dimensions(), value)); q.By < 0 {
				err = fmt.Errorf("there are no accounts by %q, only by one of %v", value, Dimensions())
			}
		case name == "since":
			if q.Since, err = time.ParseDuration(value); err == nil && q.Since <= 0 {
				err = fmt.Errorf("since=%s is not in the past", value)
			}
		case name == "sort":
			q.Sort = value
		case name == "rows":
			if q.Rows, err = strconv.Atoi(value); err == nil && (q.Rows < 1 || q.Rows > maxRows) {
				err = fmt.Errorf("rows=%s is not between 1 and %d", value, maxRows)
			}
		case d >= 0:
			if q.Only == nil {
				q.Only = map[Dimension]string{}
			}
			q.Only[Dimension(d)] = value
		default:
			err = fmt.Errorf("unknown parameter %q", name)
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

// Values returns the parameters of a query.
func (q *Query) Values() url.Values {
	values := url.Values{"by": {Dimensions()[q.By]}}
	if q.Since > 0 {
		values.Set("since", q.Since.String())
	}
	if q.Sort != "" {
		values.Set("sort", q.Sort)
	}
	if q.Rows > 0 {
		values.Set("rows", strconv.Itoa(q.Rows))
	}
	for d, name := range q.Only {
		values.Set(Dimensions()[d], name)
	}
	return values
}
