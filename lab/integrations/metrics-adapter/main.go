// Command metrics-adapter serves the custom metrics API from Prometheus, by a file with prometheus-adapter's rules.
//
// prometheus-adapter cannot be built as a Go module. This program takes its place in tests: it understands the same
// file, as far as docs/monitoring.md uses it, so that the rules in config/samples are tried as they are.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider/helpers"
	"sigs.k8s.io/yaml"
)

const answerSeconds = 10

// rules is the file of prometheus-adapter, without what this program does not use: the API server lists every
// metric of the file, whether or not Prometheus has series of it.
type rules struct {
	Rules []struct {
		SeriesQuery string `json:"seriesQuery"`
		Resources   struct {
			Overrides map[string]struct {
				Resource string `json:"resource"`
			} `json:"overrides"`
		} `json:"resources"`
		Name struct {
			As string `json:"as"`
		} `json:"name"`
		MetricsQuery string `json:"metricsQuery"`
	} `json:"rules"`
}

// metric is a rule of pods that has been checked.
type metric struct {
	query                    *template.Template
	namespaceLabel, podLabel string
}

type prometheus struct {
	url     string
	metrics map[string]metric
	client  dynamic.Interface
	mapper  meta.RESTMapper
}

func readMetrics(file string) (map[string]metric, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var read rules
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	metrics := map[string]metric{}
	for _, rule := range read.Rules {
		made := metric{}
		for label, of := range rule.Resources.Overrides {
			switch of.Resource {
			case "namespace":
				made.namespaceLabel = label
			case "pod":
				made.podLabel = label
			}
		}
		if rule.Name.As == "" || made.namespaceLabel == "" || made.podLabel == "" {
			return nil, fmt.Errorf("%s: rule %q: name.as and overrides for namespace and pod are required", file, rule.Name.As)
		}
		made.query, err = template.New(rule.Name.As).Delims("<<", ">>").Option("missingkey=error").Parse(rule.MetricsQuery)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		metrics[rule.Name.As] = made
	}
	return metrics, nil
}

func (p *prometheus) ListAllMetrics() []provider.CustomMetricInfo {
	listed := make([]provider.CustomMetricInfo, 0, len(p.metrics))
	for name := range p.metrics {
		listed = append(listed, provider.CustomMetricInfo{
			GroupResource: schema.GroupResource{Resource: "pods"}, Namespaced: true, Metric: name,
		})
	}
	return listed
}

func (p *prometheus) GetMetricByName(
	ctx context.Context, name types.NamespacedName, info provider.CustomMetricInfo, _ labels.Selector,
) (*custom_metrics.MetricValue, error) {
	values, err := p.values(ctx, name.Namespace, []string{name.Name}, info)
	if err != nil {
		return nil, err
	}
	if len(values) != 1 {
		return nil, provider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
	}
	return &values[0], nil
}

func (p *prometheus) GetMetricBySelector(
	ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, _ labels.Selector,
) (*custom_metrics.MetricValueList, error) {
	names, err := helpers.ListObjectNames(p.mapper, p.client, namespace, selector, info)
	if err != nil {
		return nil, err
	}
	values, err := p.values(ctx, namespace, names, info)
	if err != nil {
		return nil, err
	}
	return &custom_metrics.MetricValueList{Items: values}, nil
}

// values returns the metric of each of these pods that has one.
func (p *prometheus) values(
	ctx context.Context, namespace string, names []string, info provider.CustomMetricInfo,
) ([]custom_metrics.MetricValue, error) {
	found, known := p.metrics[info.Metric]
	if !known || info.GroupResource.Resource != "pods" {
		return nil, provider.NewMetricNotFoundError(info.GroupResource, info.Metric)
	}
	if len(names) == 0 {
		return nil, nil
	}
	var query bytes.Buffer
	err := found.query.Execute(&query, map[string]string{
		"Series":        info.Metric,
		"LabelMatchers": fmt.Sprintf("%s=%q,%s=~%q", found.namespaceLabel, namespace, found.podLabel, strings.Join(names, "|")),
		"GroupBy":       found.podLabel,
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	samples, err := p.ask(ctx, query.String())
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("query %s: %w", query.String(), err))
	}
	values := make([]custom_metrics.MetricValue, 0, len(samples))
	for _, sample := range samples {
		name := types.NamespacedName{Namespace: namespace, Name: sample.Metric[found.podLabel]}
		object, err := helpers.ReferenceFor(p.mapper, name, info)
		if err != nil {
			return nil, err
		}
		values = append(values, custom_metrics.MetricValue{
			DescribedObject: object,
			Metric:          custom_metrics.MetricIdentifier{Name: info.Metric},
			Timestamp:       metav1.Time{Time: time.Now()},
			Value:           *resource.NewMilliQuantity(int64(sample.value*1000), resource.DecimalSI),
		})
	}
	return values, nil
}

type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"` // the time, and the value as text
	value  float64
}

func (p *prometheus) ask(ctx context.Context, query string) ([]sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: answerSeconds * time.Second}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var body struct {
		Error string `json:"error"`
		Data  struct {
			Result []sample `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return nil, err
	}
	if body.Error != "" {
		return nil, errors.New(body.Error)
	}
	for i := range body.Data.Result {
		text, _ := body.Data.Result[i].Value[1].(string)
		if body.Data.Result[i].value, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, err
		}
	}
	return body.Data.Result, nil
}

func run() error {
	adapter := &cmd.AdapterBase{Name: "metrics-adapter"}
	source := adapter.Flags().String("prometheus-url", "", "the URL of Prometheus")
	file := adapter.Flags().String("config", "", "the file with prometheus-adapter's rules")
	if err := adapter.Flags().Parse(os.Args); err != nil {
		return err
	}
	metrics, err := readMetrics(*file)
	if err != nil {
		return err
	}
	client, err := adapter.DynamicClient()
	if err != nil {
		return err
	}
	mapper, err := adapter.RESTMapper()
	if err != nil {
		return err
	}
	adapter.WithCustomMetrics(&prometheus{url: *source, metrics: metrics, client: client, mapper: mapper})
	return adapter.Run(context.Background())
}

func main() {
	if err := run(); err != nil {
		klog.Fatal(err)
	}
}
