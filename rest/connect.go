package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/resource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Connector opens connections to what is behind the server.
type Connector interface {
	// Connect passes the request on to a location, and what comes back to the
	// client.
	Connect(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error))
	// Read answers with the text that is at a location.
	Read(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error))
}

// connect opens the connection that a subresource stands for.
func (s *scope) connect() error {
	c := s.sub.Connect
	if !slices.Contains(c.Methods, s.r.Method) {
		return errMethodNotAllowed()
	}
	if s.isNameless() {
		return errNameless()
	}
	if s.served.Version.Deprecation != "" {
		s.req.Warn(s.served.Version.Deprecation)
	}
	if c.Text {
		if err := s.acceptsText(); err != nil {
			return err
		}
	}
	query := s.req.Query.Values()
	if !c.Text && len(query["dryRun"]) > 0 {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	if c.Path {
		query.Set("path", s.pathBehind())
	}
	options := c.Options()
	if err := decodeOptions(query, options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if !c.Text { // reading is not judged
		a, err := s.admit(admission.Connect, options, nil, nil)
		if err == nil {
			err = s.validateAdmission(a, options)
		}
		s.changed.end() // the connection may last for hours
		if err != nil {
			return err
		}
	}
	if c.Verb != "" && c.Verb != s.req.Verb && s.h.Authorizer != nil {
		decision, reason, err := s.h.Authorizer.Authorize(s.ctx(), s.attributesFor(c.Verb))
		if err != nil {
			return err
		}
		if decision != authz.Allow {
			return apierrors.NewForbidden(s.groupResource(), s.req.Name, errors.New(reason))
		}
	}
	s.objects = track(s.h.objects(s.def))
	to, err := c.Locate(s.ctx(), target{s}, options)
	switch {
	case err != nil:
		return reserveError(err)
	case to == nil:
		s.w.WriteHeader(http.StatusNoContent)
		return nil
	case s.h.Connector == nil:
		return apierrors.NewServiceUnavailable("this server opens no connections")
	}
	// What goes wrong on the way has no reason that clients could act on.
	fail := func(err error) { s.fail(reserveError(err)) }
	if c.Text {
		s.h.Connector.Read(s.w, s.r, to, fail)
	} else {
		s.h.Connector.Connect(s.w, s.r, to, fail)
	}
	return nil
}

// acceptsText wants a client that takes one of the formats of errors. Plain text
// is among those that it hears of, and not among those that do.
func (s *scope) acceptsText() error {
	_, err := s.negotiate()
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return err
	}
	types := s.acceptedTypes()
	if accept := s.r.Header.Get("Accept"); strings.Contains(accept, "text/plain") || strings.Contains(accept, "text/*") {
		return errNotAcceptable(types)
	}
	status.ErrStatus.Message = strings.Replace(status.ErrStatus.Message, types, "text/plain, "+types, 1)
	return status
}

// pathBehind returns what the path has after the subresource.
func (s *scope) pathBehind() string {
	path := ""
	if len(s.req.Parts) > 3 {
		path = "/" + strings.TrimPrefix(strings.Join(s.req.Parts[3:], "/"), "/")
	}
	if strings.HasSuffix(s.r.URL.Path, "/") && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	return path
}

// decodeOptions reads the values of a query into the fields of a struct, by
// their names in JSON. The errors are those that clients know.
func decodeOptions(query url.Values, options runtime.Object) error {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if values := query[name]; name != "" && len(values) > 0 {
			if err := decodeOption(values, v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func decodeOption(values []string, field reflect.Value) error {
	switch to := field.Addr().Interface().(type) {
	case *[]string:
		*to = values
		return nil
	case *[]int32:
		for number := range strings.SplitSeq(strings.Join(values, ","), ",") {
			n, err := strconv.ParseUint(number, 10, 16)
			if err != nil {
				return fmt.Errorf("cannot convert to []int32: %w", err)
			}
			*to = append(*to, int32(n))
		}
		return nil
	case *metav1.Time:
		return to.UnmarshalQueryParameter(values[0])
	}
	switch field.Kind() {
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		return decodeOption(values, field.Elem())
	case reflect.String:
		field.SetString(values[0])
	case reflect.Bool:
		field.SetBool(values[0] != "0" && !strings.EqualFold(values[0], "false"))
	case reflect.Int64:
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil {
			return err
		}
		field.SetInt(n)
	default:
		return fmt.Errorf("options cannot have a %s", field.Type())
	}
	return nil
}
