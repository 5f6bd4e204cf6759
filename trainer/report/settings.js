// SPDX-License-Identifier: Apache-2.0
//
// Every setting with its value and where it came from; those at their defaults are folded away.

function showSettings() {
  const keys = [...new Set(runs.flatMap((run) => run.settings.map((setting) => setting.key)))];
  const find = (run, key) => run.settings.find((setting) => setting.key === key);
  const settings = keys.map((key) => {
    const found = runs.map((run) => find(run, key)).filter(Boolean);
    const values = runs.map((run) => find(run, key)?.value ?? '–');
    const same = values.every((value) => value === values[0]);
    const sources = [...new Set(found.map((setting) => setting.source))];
    const alias = found.find((setting) => setting.alias)?.alias ?? '';
    return {key, value: same ? values[0] : values.join(' · '), sources, alias};
  });
  const rows = (list) => list.map(
      (setting) =>
          [setting.key,
           setting.value,
           el('span', {}, ...setting.sources.map(sourceTag)),
           {text: setting.alias, class: 'muted wide'},
  ]);
  const heads = [
    'Setting',
    runs.length > 1 ? 'Value (where runs differ: one for each)' : 'Value',
    'From',
    {text: 'Also known as', class: 'wide'},
  ];
  const isDefault = ({sources}) => sources.length === 1 && sources[0] === 'default';
  const chosen = settings.filter((setting) => !isDefault(setting));
  const defaults = settings.filter(isDefault);
  const folded =
      el('details', {}, el('summary', {}, `${defaults.length} settings at their defaults`),
         table('Settings at their defaults', heads, rows(defaults)));
  show('settings-body', table('Settings', heads, rows(chosen)), defaults.length > 0 && folded);
}

const sourceTag = (source) =>
    el('span', {class: source === 'default' ? 'tiny muted' : 'tag'}, source);
