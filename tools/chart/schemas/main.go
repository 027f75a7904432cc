// Writes JSON Schemas of Kubernetes' types, by reflection: exactly the fields that the API server decodes.
// kubeconform reads them, so that checking a chart needs no network access.
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type schema = map[string]any

// The core group has no name; kubeconform expects its version instead.
var kinds = []struct {
	group, version string
	object         any
}{
	{"v1", "v1", corev1.ConfigMap{}},
	{"v1", "v1", corev1.PersistentVolumeClaim{}},
	{"v1", "v1", corev1.Pod{}},
	{"v1", "v1", corev1.Secret{}},
	{"v1", "v1", corev1.Service{}},
	{"v1", "v1", corev1.ServiceAccount{}},
	{"apps", "v1", appsv1.DaemonSet{}},
	{"apps", "v1", appsv1.Deployment{}},
	{"apps", "v1", appsv1.StatefulSet{}},
	{"autoscaling", "v2", autoscalingv2.HorizontalPodAutoscaler{}},
	{"networking.k8s.io", "v1", networkingv1.Ingress{}},
	{"networking.k8s.io", "v1", networkingv1.NetworkPolicy{}},
	{"policy", "v1", policyv1.PodDisruptionBudget{}},
	{"rbac.authorization.k8s.io", "v1", rbacv1.ClusterRoleBinding{}},
}

// Types with a custom JSON encoding.
var special = map[reflect.Type]schema{
	reflect.TypeFor[metav1.Time]():          {"type": "string"},
	reflect.TypeFor[metav1.MicroTime]():     {"type": "string"},
	reflect.TypeFor[resource.Quantity]():    {"type": []string{"string", "number"}},
	reflect.TypeFor[intstr.IntOrString]():   {"type": []string{"string", "integer"}},
	reflect.TypeFor[runtime.RawExtension](): {},
	reflect.TypeFor[metav1.FieldsV1]():      {"type": "object"},
}

func schemaOf(t reflect.Type) schema {
	if found, ok := special[t]; ok {
		return found
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return schema{"type": "integer"}
	case reflect.Float64:
		return schema{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return schema{"type": "string"}
		}
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		properties := schema{}
		addFields(properties, t)
		return schema{"type": "object", "properties": properties, "additionalProperties": false}
	default:
		panic("no schema for " + t.String())
	}
}

func addFields(properties schema, t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if strings.Contains(options, "inline") || (field.Anonymous && name == "") {
			addFields(properties, field.Type)
		} else if name != "" && name != "-" {
			properties[name] = schemaOf(field.Type)
		}
	}
}

func main() {
	folder := os.Args[1]
	for _, kind := range kinds {
		t := reflect.TypeOf(kind.object)
		text, err := json.Marshal(schemaOf(t))
		if err != nil {
			panic(err)
		}
		file := filepath.Join(folder, kind.group, strings.ToLower(t.Name())+"_"+kind.version+".json")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			panic(err)
		}
	}
}
