// Checks objects of KEDA and prometheus-operator, a JSON list on standard input, and prints the faults of each.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";
import { PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const KINDS = { ScaledObject, PodMonitor, PrometheusRule, ServiceMonitor };

function faultOf(object) {
  const Kind = KINDS[object.kind];
  if (!Kind) return `no schema for ${object.kind}`;
  if (new Kind({}).apiVersion !== object.apiVersion) return `${object.kind} of ${object.apiVersion}`;
  try {
    new Kind(object).validate();
    return null;
  } catch (error) {
    return error.message;
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(faultOf)));
