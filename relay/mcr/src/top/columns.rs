//! The columns of the table of rules: whole names if possible, and never a truncated number. Columns that
//! do not fit are omitted, the least important first.

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Shown if there are several.
    Host,
    Name,
    State,
    Path,
    /// Packets over a second.
    Short,
    /// Packets over ten seconds.
    Long,
    Rate,
    Dropped,
    /// The sparkline.
    Last,
}

/// All columns except host and name, in display order.
const COLUMNS: [Column; 7] = [
    Column::State,
    Column::Path,
    Column::Short,
    Column::Long,
    Column::Rate,
    Column::Dropped,
    Column::Last,
];

/// The order in which columns are omitted. The state always stays.
const OMITTED: [Column; 6] = [
    Column::Long,
    Column::Path,
    Column::Last,
    Column::Dropped,
    Column::Rate,
    Column::Short,
];

/// Shortest and longest width that a name gets at the cost of columns.
const NAME: std::ops::RangeInclusive<usize> = 8..=30;
/// Widest sparkline.
pub(super) const LAST_MAX: u16 = 60;

impl Column {
    /// Its title, aligned as its cells are.
    pub(super) fn title(self, width: u16) -> String {
        let width = usize::from(width);
        match self {
            Self::Host => "HOST".to_owned(),
            Self::Name => "RULE".to_owned(),
            Self::State => "STATE".to_owned(),
            Self::Path => "PATH".to_owned(),
            Self::Short => format!("{:>width$}", "PPS 1s"),
            Self::Long => format!("{:>width$}", "PPS 10s"),
            Self::Rate => format!("{:>width$}", "RATE"),
            Self::Dropped => format!("{:>width$}", "DROPPED"),
            Self::Last => "LAST".to_owned(),
        }
    }

    /// Its width, with the blank before it.
    const fn full_width(self) -> usize {
        1 + match self {
            Self::Name | Self::Host => 0,
            Self::State | Self::Last => 8,
            Self::Path => 6,
            Self::Short | Self::Long | Self::Dropped => 9,
            Self::Rate => 11,
        }
    }
}

/// The columns that fit into `width`, with their widths. The longest name has `longest` letters.
pub(super) fn layout(width: usize, longest: usize) -> Vec<(Column, u16)> {
    let wanted = longest.clamp(*NAME.start(), *NAME.end());
    let mut columns = COLUMNS.to_vec();
    let remaining = |columns: &[Column]| {
        let taken: usize = columns.iter().map(|column| column.full_width()).sum();
        width.saturating_sub(taken)
    };
    for omitted in OMITTED {
        // A rate is worth more than a whole name.
        let least = if omitted == Column::Short {
            *NAME.start()
        } else {
            wanted
        };
        if remaining(&columns) >= least {
            break;
        }
        columns.retain(|column| *column != omitted);
    }
    let name_width = remaining(&columns);
    // The sparkline takes half of what no name needs.
    let spare = name_width.saturating_sub(longest.max(wanted)) / 2;
    let has_last = columns.contains(&Column::Last);
    let growth = if has_last {
        spare.min(usize::from(LAST_MAX) - 8)
    } else {
        0
    };
    let mut layout = vec![(Column::Name, (name_width - growth) as u16)];
    layout.extend(columns.into_iter().map(|column| {
        let extra = if column == Column::Last { growth } else { 0 };
        (column, (column.full_width() - 1 + extra) as u16)
    }));
    layout
}

/// The same after a column of hosts, whose longest name has `host` letters.
pub(super) fn layout_with_hosts(width: usize, host: usize, longest: usize) -> Vec<(Column, u16)> {
    let host = host.clamp(4, 4.max(width / 4));
    let mut layout = layout(width.saturating_sub(host + 1), longest);
    layout.insert(0, (Column::Host, host as u16));
    layout
}

/// A name in at most `width` letters: of a longer one the beginning and the end, which distinguish it.
pub(super) fn shortened(name: &str, width: usize) -> String {
    let letters = name.chars().count();
    if letters <= width {
        return name.to_owned();
    }
    let end = width.saturating_sub(1) / 2;
    let begin = width.saturating_sub(1) - end;
    let tail = name.chars().skip(letters - end);
    name.chars()
        .take(begin)
        .chain(['…'])
        .chain(tail)
        .take(width)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_the_width_exactly() {
        for width in 20..300 {
            for longest in [0, 4, 12, 19, 26, 63] {
                for layout in [
                    layout(width, longest),
                    layout_with_hosts(width + 20, longest, longest),
                ] {
                    let widths: usize = layout.iter().map(|(_, width)| usize::from(*width)).sum();
                    let width = match layout[0].0 {
                        Column::Host => width + 20,
                        _ => width,
                    };
                    assert_eq!(widths + layout.len() - 1, width, "{width} {longest}");
                }
            }
        }
    }

    #[test]
    fn names_come_before_columns_that_matter_less() {
        let columns = |width, longest| -> Vec<Column> {
            layout(width, longest)
                .into_iter()
                .map(|(column, _)| column)
                .collect()
        };
        assert_eq!(columns(80, 12).len(), 8);
        let shown = columns(80, 19);
        assert!(!shown.contains(&Column::Long) && shown.contains(&Column::Last));
        assert_eq!(columns(30, 8), [Column::Name, Column::State, Column::Short]);
        assert_eq!(columns(20, 40), [Column::Name, Column::State]);
    }

    #[test]
    fn a_shortened_name_keeps_both_ends() {
        assert_eq!(shortened("eth0-239.1.1.1-5001", 19), "eth0-239.1.1.1-5001");
        assert_eq!(shortened("eth0-239.1.1.1-5001", 12), "eth0-2…-5001");
        assert_eq!(shortened("camera", 1), "…");
        assert_eq!(shortened("camera", 0), "");
    }
}
