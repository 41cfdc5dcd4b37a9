package kelson

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/status"
)

const mediaJSON = status.JSON

// writeError answers a request that a stage refuses.
func writeError(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	status.Write(w, r, err.ErrStatus)
}
