def manual_pairs():
    import pydoc_data.topics as t

    rows = []
    for text in t.topics.values():
        for s in text.replace("\n", " ").split(". "):
            w = s.split()
            if 8 <= len(w) <= 40:
                rows.append((" ".join(w[: len(w) // 2]), " ".join(w[len(w) // 2 :])))
    rows = list(dict.fromkeys(rows))
    return rows[:-500], rows[-500:]
