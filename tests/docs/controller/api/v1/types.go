// Package v1 has the kind that the snippets of docs/migration.rst are about.
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// App is an object of the kind.
type App struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject makes it an object for clients.
func (a *App) DeepCopyObject() runtime.Object {
	return &App{TypeMeta: a.TypeMeta, ObjectMeta: *a.ObjectMeta.DeepCopy()}
}
