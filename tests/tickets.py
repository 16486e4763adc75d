"""The export of a help desk, made from a seed: as skewed, doubled and oddly spelt as real ones.

`python -m tests.tickets FILE [SEED]` writes it.
"""

import csv
import random
import sys
from pathlib import Path

ROWS, DOUBLED, NOISE, BETWEEN = 4000, 0.08, 0.06, " \n"

LABELS = {
    ("Billing", "billing"): "invoice refund Rechnung factura charged 💶",
    ("Delivery", "delivery "): "parcel late Paket paquete courier 📦",
    ("Log in", "login"): "password account Passwort contraseña locked 🔑",
    ("Returns", "RETURNS"): "return label Rücksendung devolución exchange",
    ("Bug report", "bug-report"): "crash error Fehler pantalla freezes 🐛",
    ("Réclamation", "Reclamation"): "rude complaint Beschwerde queja unacceptable 😡",
    ("Subscription", "subscription"): "plan renew Abo suscripción cancel",
    ("Size guide", "Sizeguide"): "size fit Größe talla small",
    ("Gift card", "gift card"): "voucher gift Gutschein regalo code 🎁",
    ("Café order", "Cafe order"): "coffee breakfast Kaffee desayuno table ☕",
    ("Press",): "journalist interview Zeitung prensa article",
    ("Legal",): "lawyer contract Anwalt abogado court",
}
"""22 spellings of 12 labels, with words of each; the first spelling is the commonest."""

OPENINGS = ("Hello,", "Guten Tag,", "Hola,", "URGENT!", "Hi team", "Bonjour,", "Re: Re:", "Help,")
FILLERS = (
    "I wrote last week", "since Monday", "no answer", "seit gestern", "muchas gracias", "order",
    "my wife", "again", "bitte schnell", "por favor", "the app", "today", "merci", "why", "🙏",
)  # fmt: skip


def rows(seed=0):
    """Return texts with labels; a few texts are about another matter than their label says."""
    draw = random.Random(seed)
    spellings = list(LABELS)
    shares = [1 / (place + 1) ** 1.4 for place in range(len(spellings))]
    made = []
    while len(made) < ROWS:
        if made and draw.random() < DOUBLED:
            text, label = draw.choice(made)
            made.append((text if draw.random() < 0.5 else f" {text.upper()}", label))
            continue
        (of,) = draw.choices(spellings, shares)
        about = draw.choice(spellings) if draw.random() < NOISE else of
        words = draw.sample(LABELS[about].split(), 1 + (draw.random() < 0.5))
        other = LABELS[draw.choice(spellings)].split()[:1] if draw.random() < 0.4 else []
        parts = [*words, *other, *draw.sample(FILLERS, draw.randint(2, 6))]
        draw.shuffle(parts)
        text = f"{draw.choice(OPENINGS)}{draw.choice(BETWEEN)}{', '.join(parts)}"
        made.append((text, of[-1] if draw.random() < 0.3 else of[0]))
    return made


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows(*map(int, sys.argv[2:]))])
