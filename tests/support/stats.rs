//! Numbers from Envoy's admin interface.

use serde_json::Value;

/// The value of the counter or gauge `name` in the text of `/stats`; 0 where there is none.
pub fn value(stats: &str, name: &str) -> u64 {
    stats
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
        .unwrap_or(0)
}

/// The sum of all series of `name` in the text of `/stats/prometheus` that carry all of `labels`.
pub fn sum(prometheus: &str, name: &str, labels: &[(&str, &str)]) -> u64 {
    prometheus
        .lines()
        .filter_map(|line| {
            let series = line.strip_prefix(name)?.strip_prefix('{')?;
            let (present, value) = series.rsplit_once("} ")?;
            let wanted = |(label, value): &(&str, &str)| {
                present.split(',').any(|pair| pair == format!("{label}=\"{value}\""))
            };
            labels.iter().all(wanted).then(|| value.parse::<u64>().ok())?
        })
        .sum()
}

/// The port of the listener `name` in the JSON of `/listeners`.
pub fn listener_port(listeners: &str, name: &str) -> Option<u16> {
    let listeners: Value = serde_json::from_str(listeners).ok()?;
    let listener = listeners["listener_statuses"]
        .as_array()?
        .iter()
        .find(|listener| listener["name"] == name)?;
    listener["local_address"]["socket_address"]["port_value"].as_u64()?.try_into().ok()
}
