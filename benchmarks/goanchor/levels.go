package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	reconciling "sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var children = childrenOf(os.Getenv("BENCH_CHILDREN"))

func childrenOf(text string) int {
	if number, err := strconv.Atoi(text); err == nil {
		return number
	}
	return 5
}

// runLevels does the work of ../operators/reconcile.py and children.py by
// controller-runtime, as its users write it: with CreateOrUpdate and Owns.
func runLevels(ctx context.Context, mode, plural string, config *rest.Config, tally *tally) error {
	ctrl.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Client:  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return err
	}
	kind := schema.GroupVersionKind{Group: "bench.kopf.dev", Version: "v1", Kind: strings.ToUpper(plural[:1]) + plural[1:]}
	parent := &unstructured.Unstructured{}
	parent.SetGroupVersionKind(kind)
	builder := ctrl.NewControllerManagedBy(manager).Named(mode).For(parent).
		WithOptions(controller.Options{MaxConcurrentReconciles: 16})
	if mode == "children" {
		builder = builder.Owns(&corev1.ConfigMap{})
	}
	api := manager.GetClient()
	err = builder.Complete(reconciling.Func(func(ctx context.Context, request reconciling.Request) (reconciling.Result, error) {
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(kind)
		if err := api.Get(ctx, request.NamespacedName, obj); err != nil {
			return reconciling.Result{}, client.IgnoreNotFound(err)
		}
		if mode == "children" {
			for number := range children {
				if err := applyChild(ctx, api, obj, number); err != nil {
					return reconciling.Result{}, err
				}
			}
		}
		tally.add(obj)
		return reconciling.Result{}, nil
	}))
	if err != nil {
		return err
	}
	report("start", nil)
	return manager.Start(ctx)
}

func applyChild(ctx context.Context, api client.Client, owner *unstructured.Unstructured, number int) error {
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: owner.GetNamespace(), Name: fmt.Sprintf("%s-%d", owner.GetName(), number),
	}}
	_, err := controllerutil.CreateOrUpdate(ctx, api, child, func() error {
		child.Labels = map[string]string{"bench": "child"}
		child.Data = map[string]string{}
		for key := range 10 {
			child.Data[fmt.Sprintf("SETTING_%d", key)] = fmt.Sprintf("value-%s-%d-%d", owner.GetName(), number, key)
		}
		return controllerutil.SetControllerReference(owner, child, api.Scheme())
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return err
}
