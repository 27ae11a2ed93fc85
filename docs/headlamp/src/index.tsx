// Adds "GPU nodes" to the sidebar of a cluster in Headlamp: a list of its GPUNodes. What is free, and why a pod waits,
// only `kubectl gpushare` can say: that takes the webhook's placement rules.
import { registerRoute, registerSidebarEntry } from '@kinvolk/headlamp-plugin/lib';
import { ResourceListView } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { makeCustomResourceClass } from '@kinvolk/headlamp-plugin/lib/Crd';

interface Gpu {
  model?: string;
  healthy?: boolean;
}

interface GpuNodeJson {
  spec?: { allocations?: { id: string }[] };
  status?: {
    config?: string;
    gpus?: Gpu[];
    conditions?: { type: string; status: string; message?: string }[];
  };
}

const GpuNode = makeCustomResourceClass({
  apiInfo: [{ group: 'gpushare.io', version: 'v1alpha1' }],
  isNamespaced: false,
  singularName: 'gpunode',
  pluralName: 'gpunodes',
  kind: 'GPUNode',
});

const json = (item: { jsonData: unknown }) => item.jsonData as GpuNodeJson;
const gpus = (item: { jsonData: unknown }) => json(item).status?.gpus ?? [];
// Without backfill reservations: they keep GPUs for pods that still wait.
const allocations = (item: { jsonData: unknown }) =>
  (json(item).spec?.allocations ?? []).filter(each => !each.id.startsWith('hold-'));
const models = (item: { jsonData: unknown }) =>
  [...new Set(gpus(item).map(gpu => gpu.model ?? 'unknown'))].join(', ');

function ready(item: { jsonData: unknown }): string {
  const condition = json(item).status?.conditions?.find(each => each.type === 'Ready');
  if (!condition) return 'Unknown';
  return condition.status === 'True' ? 'True' : condition.message || condition.status;
}

function GpuNodes() {
  return (
    <ResourceListView
      title="GPU nodes"
      resourceClass={GpuNode}
      columns={[
        'name',
        { id: 'gpus', label: 'GPUs', getValue: item => gpus(item).length },
        { id: 'models', label: 'Models', getValue: models },
        {
          id: 'unhealthy',
          label: 'Unhealthy',
          getValue: item => gpus(item).filter(gpu => gpu.healthy === false).length,
        },
        {
          id: 'allocations',
          label: 'Allocations',
          getValue: item => allocations(item).length,
        },
        { id: 'config', label: 'Config', getValue: item => json(item).status?.config ?? '' },
        { id: 'ready', label: 'Ready', getValue: ready },
        'age',
      ]}
    />
  );
}

registerSidebarEntry({
  parent: 'cluster',
  name: 'gpunodes',
  label: 'GPU nodes',
  url: '/gpunodes',
});

registerRoute({ path: '/gpunodes', sidebar: 'gpunodes', name: 'gpunodes', exact: true, component: GpuNodes });
