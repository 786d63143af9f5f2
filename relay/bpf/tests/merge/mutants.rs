//! Errors that the checker must notice: what to replace, by what.

pub(crate) struct Mutant {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

const fn mutant(from: &'static str, to: &'static str) -> Mutant {
    Mutant { from, to }
}

/// The first few are tried whenever tests run.
pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "if (MERGE_CAS(*word, old, old | mine) != old)\n\t\t\t\tcontinue;",
        "MERGE_STORE(*word, old | mine);",
    ),
    mutant("return MERGE_REPEATED;", "return MERGE_DUPLICATE;"),
    mutant(
        "verdict == MERGE_AGAIN && p->generation",
        "verdict == MERGE_AGAIN && 0",
    ),
    mutant(
        "if (MERGE_CAS(*word, old, (__u64)tag << 32 | mine) != old)\n\t\t\tcontinue;",
        "MERGE_STORE(*word, (__u64)tag << 32 | mine);",
    ),
    mutant("if (fresh >> n & 1)", "if (!(old & mine))"),
    mutant("(__s16)(was - tag) > 0", "0"),
    mutant(
        "if (merge_is_opened(id, newest))\n\t\t\treturn MERGE_AGAIN;",
        "",
    ),
    mutant("p->newest |= MERGE_PENDING;", ";"),
    mutant(
        "if (MERGE_CAS(m->newest, newest, (__u64)generation << 8 | held | place) != newest)\n\t\t\treturn MERGE_AGAIN;",
        "MERGE_STORE(m->newest, (__u64)generation << 8 | held | place);",
    ),
    mutant(
        "id >> 32 != p->key || merge_is_pending(p, i)",
        "id >> 32 != p->key",
    ),
    mutant(
        "if (MERGE_LOAD(m->newest) != (p->newest & ~MERGE_PENDING))",
        "if (0)",
    ),
    mutant("&& merge_has_opened(m, p))", "&& 0)"),
    mutant(
        "return p->newest & MERGE_PENDING &&",
        "return 0 && p->newest & MERGE_PENDING &&",
    ),
    mutant("if (i != l && merge_near(", "if (0 && merge_near("),
    mutant(
        "if (own == mark || !merge_near(p, own, -most, most))\n",
        "\n",
    ),
    mutant(
        "own = MERGE_CAS(m->line[l].candidate,",
        "MERGE_CAS(m->line[l].candidate,",
    ),
    mutant("if (own != mark && merge_near(", "if (merge_near("),
    mutant(
        "own != mark && merge_near(p, own, -most,",
        "merge_near(p, own, 1,",
    ),
    mutant(
        "MERGE_STORE(part->first, at);\n\t\treturn 0;",
        "MERGE_STORE(part->first, at);",
    ),
    mutant("MERGE_STORE(line->candidate, 0);", ";"),
    mutant("ahead <= 0 && !(first", "ahead > 0 && !(first"),
    mutant("if (other && other != was)", "if (0)"),
    mutant("else if (was && !other)", "else if (0)"),
    mutant("if (other != was && ahead <= most)", "if (0)"),
    mutant("other = was;", "other = 0;"),
    mutant("next = was;", ";"),
    mutant("? top : -left <= merge_reach(m) ? was : 0", "? top : top"),
    mutant("-left <= merge_reach(m) ? was : 0", "was"),
    mutant("first && merge_went_on(m, p, was, to)", "0"),
    mutant("merge_beyond(last, was) >= 0", "1"),
    mutant("|| MERGE_LOAD(s->top) != top;", ";"),
    mutant("merge_rise(m, p, 0);", ""),
    mutant("l.newest != MERGE_NONE && merge_look_before(m, p, &l)", "0"),
    mutant(
        "merge_ahead(to, base, MERGE_NUMBER_BITS) >= 0",
        "merge_ahead(to, base, MERGE_NUMBER_BITS) <= 0",
    ),
    mutant(
        "if (MERGE_CAS(s->top, top, (__u64)generation << MERGE_NUMBER_BITS | to) != top)\n\t\treturn;",
        "MERGE_STORE(s->top, (__u64)generation << MERGE_NUMBER_BITS | to);",
    ),
    mutant(
        "merge_see(&rule->line[p->line & (MERGE_LINES - 1)].seen_ns, p->now_ns);",
        "",
    ),
    mutant(
        "merge_is_over(l.found_seen, now, window) &&\n\t\t    !merge_goes_on(p, l.found_own, 1, reach)",
        "0",
    ),
    mutant(
        "p->at = (top + by) & MERGE_NUMBER_MASK;",
        "p->at = p->number;",
    ),
    mutant(
        "if (silent)\n\t\treturn MERGE_OPEN;",
        "if (silent || l.ahead > 0)\n\t\treturn MERGE_OPEN;",
    ),
    mutant("run && ahead < 0x800 ? run + 1 : 1;", "1;"),
    mutant("if (run >= MERGE_RUN)", "if (run >= MERGE_RUN - 2)"),
    mutant(
        "if (again & lane)\n\t\tMERGE_CAS(s->again, again, again & ~lane);",
        "",
    ),
    mutant(
        "if (MERGE_LOAD(s->again))\n\t\tMERGE_STORE(s->again, 0);",
        "",
    ),
    mutant("if (run && !ahead) {", "if (0) {"),
    mutant("verdict = MERGE_REOPEN;", "verdict = MERGE_OPEN;"),
    mutant("? MERGE_REOPEN : MERGE_STRAY", "? MERGE_OPEN : MERGE_STRAY"),
    mutant(
        "(m->newest) & MERGE_HELD ? 0 : p->now_ns",
        "(m->newest) & MERGE_HELD ? 0 : 0",
    ),
    mutant("if (again & 0x8000800080008000ull)", "if (1)"),
    mutant("if (again & 0x8000800080008000ull)", "if (0)"),
    mutant("goes_on && !l->found_own", "0"),
    mutant("!l.found_own || merge_is_over(", "merge_is_over("),
    mutant(
        "if (merge_is_0(m, p) && merge_is_before(m, p, l.found))",
        "if (0)",
    ),
    mutant("if (merge_is_0(m, p) && l.found == MERGE_NONE)", "if (0)"),
    mutant("base >> MERGE_NUMBER_BITS != p->generation ||", ""),
    mutant(
        "p->claimed = verdict <= MERGE_REPEATED &&",
        "p->claimed = 0 &&",
    ),
    mutant("MERGE_ADD(of->firsts, p->count);", ""),
    mutant("verdict == MERGE_REPEATED && p->still", "0"),
    mutant(
        "if (l.found != l.newest && !silent && merge_is_over(l.found_seen, now, window) &&",
        "if (0 &&",
    ),
    mutant("!merge_is_back(m, p, &l)", "1"),
    mutant(
        "if (l->newest == MERGE_NONE || merge_is_over(l->seen, stream_seen, 0))",
        "if (l->newest == MERGE_NONE || merge_is_later(generation, l->newest_generation))",
    ),
    mutant("&& legs < 2 &&", "&&"),
    mutant("&& !merge_has_left(m, p, &l) &&", "&&"),
    mutant("if (generation == l->newest_generation)", "if (0)"),
    mutant("== generation &&\n", "== generation && 0 &&\n"),
    mutant("merge_note_stray(rule, m, p);", ";"),
    mutant(
        "MERGE_CAS(m->newest, newest, newest | MERGE_HELD);\n\treturn",
        "return",
    ),
    mutant("merge_note_stray(rule, rule, p);", ";"),
    mutant(
        "merge_find(rule, p) ? MERGE_AGAIN : MERGE_STRAY",
        "MERGE_STRAY",
    ),
    mutant("is_near |= i != but &&", "is_near |="),
    mutant("if (rule && merge_was_stray(rule, p, but))", "if (0)"),
    mutant("if (!merge_goes_back(m, p, &l))", "if (1)"),
    mutant(
        "!(by > 0 && l->found == l->newest && l->found_ahead <= merge_most(p))",
        "1",
    ),
    mutant("!(by > 0 && l->found", "!(l->found"),
    mutant("&& l->found_ahead <= merge_most(p))", ")"),
    mutant(
        "merge_ahead(MERGE_LOAD(part->last), first, MERGE_NUMBER_BITS) >= p->count",
        "1",
    ),
    mutant(
        "merge_ahead(top + l->ahead, last, MERGE_NUMBER_BITS) > 0",
        "1",
    ),
    mutant(
        "merge_ahead(top + l->ahead, base, MERGE_NUMBER_BITS) >= 0",
        "1",
    ),
    mutant(
        "return MERGE_CONFIRM * (p->count & 0xffff);",
        "return MERGE_CONFIRM;",
    ),
    mutant("p->count ? MERGE_AGAIN : MERGE_UNNUMBERED", "MERGE_AGAIN"),
    mutant(
        "to = (__u64)p->generation << MERGE_NUMBER_BITS | ((p->at + p->count - 1) & MERGE_NUMBER_MASK);",
        "to = (__u64)p->generation << MERGE_NUMBER_BITS | p->at;",
    ),
    mutant(
        "return (__s16)(generation - than) > 0;",
        "return generation > than;",
    ),
    mutant("if (!(own & (MERGE_LINES - 1)))", "if (0)"),
    mutant("own & 0xfffc || ", ""),
    mutant("own & 0xfffc || ", "1 || "),
    mutant(
        "MERGE_CAS(rule->opener, opener, own) == opener)",
        "(MERGE_STORE(rule->opener, own), 1))",
    ),
    mutant("opener = MERGE_LOAD(rule->opener);\t/*", "/*"),
    mutant("is_member = l.newest == MERGE_NONE ||", "is_member = 1 ||"),
    mutant(
        "is_member = l.newest == MERGE_NONE || merge_is_over(l.seen, now, MERGE_PATIENCE * window)",
        "is_member = l.newest == MERGE_NONE",
    ),
    mutant(
        "if (!owner || owner == (1ull << 32 | p->key))",
        "if (!owner)",
    ),
    mutant(
        "owner = MERGE_CAS(m->owner, 0, id);",
        "MERGE_STORE(m->owner, id);",
    ),
    mutant(
        "if (MERGE_CAS(m->owner, id, id | MERGE_READY) != id)\n\t\treturn 0;",
        "MERGE_STORE(m->owner, id | MERGE_READY);",
    ),
    mutant("if (!(owner & MERGE_READY))", "if (0)"),
    mutant(
        "if (MERGE_CAS(rule->cells, head, ((head >> 32) + 1) << 32 | (p->cell + 1)) == head)",
        "MERGE_STORE(rule->cells, ((head >> 32) + 1) << 32 | (p->cell + 1));\n\t\tif (1)",
    ),
    mutant(
        "(owner & ~MERGE_READY) == id)\n\t\t\treturn MERGE_AGAIN;",
        "0)\n\t\t\treturn MERGE_AGAIN;",
    ),
    mutant("MERGE_ADD(m->span, span);", ""),
    mutant("MERGE_ADD(m->line[i].span, span);", ""),
    mutant("generation = merge_next(generation);", ""),
    mutant(
        "((last - first) & MERGE_NUMBER_MASK) + 1",
        "last - first + 1",
    ),
    mutant(
        "if (by <= -reach || by > reach)",
        "if (by <= -8 || by > reach)",
    ),
    mutant(
        "return MERGE_CAS(bucket[way], old, old | MERGE_CONFIRMED) == old ? MERGE_FIRST : MERGE_AGAIN;",
        "MERGE_STORE(bucket[way], old | MERGE_CONFIRMED);\n\t\treturn MERGE_FIRST;",
    ),
    mutant(
        "if (confirmed || tentative & ((1u << way) - 1)) {",
        "if (tentative & ((1u << way) - 1)) {",
    ),
    mutant(
        "if (confirmed || tentative & ((1u << way) - 1)) {",
        "if (confirmed) {",
    ),
    mutant("higher = tentative >> way >> 1;", "higher = 0;"),
    mutant(
        "if (MERGE_CAS(bucket[way], old, p->at) != old)\n\t\tp->at = 0;\n\telse if (!is_room && window != MERGE_LONG)",
        "MERGE_STORE(bucket[way], p->at);\n\tif (!is_room)",
    ),
    mutant(
        "return balance * sign < 0 ? MERGE_DUPLICATE : MERGE_FIRST;",
        "return balance ? MERGE_DUPLICATE : MERGE_FIRST;",
    ),
    mutant(
        "tick, p->fresh), window) : old >> MERGE_DIGEST_SHIFT == digest)",
        "tick, p->fresh), window) : 0)",
    ),
    mutant(
        "p->generation = once || balance * sign < 0;",
        "p->generation = balance * sign < 0;",
    ),
    mutant("if (once || (", "if ((0 || "),
    mutant("(p->fresh && (!balance", "(0 && (!balance"),
    mutant("p->fresh = !!MERGE_LOAD(line->joins);", "p->fresh = 1;"),
    mutant("is_level & ~joins", "is_level"),
    mutant("(__s16)(p->brought - (old >> 8)) > 0", "1"),
    mutant(
        "(!balance || (balance * sign > 0 &&",
        "((balance * sign > 0 &&",
    ),
    mutant("(balance * sign > 0 &&", "(balance &&"),
    mutant("verdict == MERGE_DUPLICATE && p->fresh &&", "0 &&"),
    mutant("#define MERGE_STAMP_MARK 8", "#define MERGE_STAMP_MARK 0"),
    mutant("(was_at >> 32 & 0xffff) != p->length", "0"),
    mutant(
        "MERGE_ADD(m->firsts, p->fresh);",
        "MERGE_ADD(m->firsts, p->count);",
    ),
    mutant(
        "!(state >> PIECES_MISSING_SHIFT) ? 1 : MERGE_LOOKS",
        "0 ? 1 : MERGE_LOOKS",
    ),
    mutant("(since >> MERGE_TICK_SHIFT) - tick) > 0", "1) > 0"),
    mutant(
        "if (is_early && verdict == MERGE_FIRST)",
        "if (verdict == MERGE_FIRST)",
    ),
    mutant("if (is_early)\n", "if (0)\n"),
    mutant("p->at = old;\n", ""),
    mutant("name & PIECES_NUMBERED ? MERGE_LONG : window", "window"),
    mutant(
        "verdict <= MERGE_REPEATED && merge_is_0",
        "verdict == MERGE_FIRST && merge_is_0",
    ),
    mutant("if (p->claimed > MERGE_FIRST + 1)", "if (0)"),
    mutant(
        "digest || merge_is_room(merge_age(old, tick, p->fresh), window))",
        "digest)",
    ),
    mutant("return b + (by & ~is_less);", "return a;"),
    mutant("hash += i * 0x9e3779b1u;", ""),
    mutant("!owner && !MERGE_LOAD(rule->cells)", "!owner"),
];
