// Package v1 has the kind that the Go code of docs/howto/controller-runtime.rst is about.
package v1

import (
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// KopfExample is an object of the kind.
type KopfExample struct {
	v1.TypeMeta   `json:",inline"`
	v1.ObjectMeta `json:"metadata,omitempty"`
	Spec          KopfExampleSpec   `json:"spec,omitempty"`
	Status        KopfExampleStatus `json:"status,omitempty"`
}

// KopfExampleSpec is the desired state.
type KopfExampleSpec struct {
	Image    string            `json:"image,omitempty"`
	Replicas *int32            `json:"replicas,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
}

// KopfExampleStatus is the observed state.
type KopfExampleStatus struct {
	Conditions []v1.Condition `json:"conditions,omitempty"`
}

// KopfExampleList is what lists of the kind return.
type KopfExampleList struct {
	v1.TypeMeta `json:",inline"`
	v1.ListMeta `json:"metadata,omitempty"`
	Items       []KopfExample `json:"items"`
}

// AddToScheme lets clients know the kind.
func AddToScheme(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Group: "kopf.dev", Version: "v1"}
	scheme.AddKnownTypes(version, &KopfExample{}, &KopfExampleList{})
	v1.AddToGroupVersion(scheme, version)
	return nil
}

// DeepCopy is generated in real projects.
func (o *KopfExample) DeepCopy() *KopfExample {
	copied := &KopfExample{TypeMeta: o.TypeMeta, ObjectMeta: *o.ObjectMeta.DeepCopy(), Spec: o.Spec}
	if o.Spec.Replicas != nil {
		replicas := *o.Spec.Replicas
		copied.Spec.Replicas = &replicas
	}
	copied.Spec.Settings = maps.Clone(o.Spec.Settings)
	for _, condition := range o.Status.Conditions {
		copied.Status.Conditions = append(copied.Status.Conditions, *condition.DeepCopy())
	}
	return copied
}

// DeepCopyObject makes it an object for clients.
func (o *KopfExample) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopyObject makes it a list for clients.
func (l *KopfExampleList) DeepCopyObject() runtime.Object {
	copied := &KopfExampleList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopy())
	}
	return copied
}
