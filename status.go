package kelson

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/status"
)

const mediaJSON = status.JSON

// writeError answers for a stage that refuses a request.
func writeError(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	status.Write(w, r, err.ErrStatus)
}
