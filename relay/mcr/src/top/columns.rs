//! Which columns the table of rules has: names whole if possible, and no number ever cut. What does
//! not fit is left out, what matters least first.

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Where there are several.
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

/// All of them but the name, in their order.
const COLUMNS: [Column; 7] = [
    Column::State,
    Column::Path,
    Column::Short,
    Column::Long,
    Column::Rate,
    Column::Dropped,
    Column::Last,
];

/// In which order they are left out. The state stays.
const LEFT_OUT: [Column; 6] = [
    Column::Long,
    Column::Path,
    Column::Last,
    Column::Dropped,
    Column::Rate,
    Column::Short,
];

/// Room that a name gets at the cost of columns.
const NAME: std::ops::RangeInclusive<usize> = 8..=30;
/// Widest sparkline.
pub(super) const LAST_MAX: u16 = 60;

impl Column {
    /// Its title, above what stands below.
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

    /// Its width, and the blank before it.
    const fn room(self) -> usize {
        1 + match self {
            Self::Name | Self::Host => 0,
            Self::State | Self::Last => 8,
            Self::Path => 6,
            Self::Short | Self::Long | Self::Dropped => 9,
            Self::Rate => 11,
        }
    }
}

/// The columns in `width`, and their widths, where the longest name has so many letters.
pub(super) fn layout(width: usize, longest: usize) -> Vec<(Column, u16)> {
    let wanted = longest.clamp(*NAME.start(), *NAME.end());
    let mut columns = COLUMNS.to_vec();
    let left = |columns: &[Column]| {
        let taken: usize = columns.iter().map(|column| column.room()).sum();
        width.saturating_sub(taken)
    };
    for out in LEFT_OUT {
        // A rate is worth more than a whole name.
        let wanted = if out == Column::Short {
            *NAME.start()
        } else {
            wanted
        };
        if left(&columns) >= wanted {
            break;
        }
        columns.retain(|column| *column != out);
    }
    let left = left(&columns);
    // The sparkline takes half of what no name needs.
    let spare = left.saturating_sub(longest.max(wanted)) / 2;
    let has_last = columns.contains(&Column::Last);
    let grown = if has_last {
        spare.min(usize::from(LAST_MAX) - 8)
    } else {
        0
    };
    let mut layout = vec![(Column::Name, (left - grown) as u16)];
    layout.extend(columns.into_iter().map(|column| {
        let width = column.room() - 1;
        let width = if column == Column::Last {
            width + grown
        } else {
            width
        };
        (column, width as u16)
    }));
    layout
}

/// The same with a column of hosts before, of which the longest name has so many letters.
pub(super) fn of_hosts(width: usize, host: usize, longest: usize) -> Vec<(Column, u16)> {
    let host = host.clamp(4, 4.max(width / 4));
    let mut layout = layout(width.saturating_sub(host + 1), longest);
    layout.insert(0, (Column::Host, host as u16));
    layout
}

/// A name in so many letters: of one that is too long beginning and end, which tell it apart.
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
                    of_hosts(width + 20, longest, longest),
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
        let kept = columns(80, 19);
        assert!(!kept.contains(&Column::Long) && kept.contains(&Column::Last));
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
