"""The built-in text that quality is measured on: prose, code and a conversation, written for this project."""

TEXT = '''\
The harbour lay quiet under a thin layer of fog when Marta opened the workshop. She had repaired clocks for thirty
years, and she still began each day in the same way: she lit the stove, wiped the bench, and listened. A healthy clock
has a rhythm that hardly anyone notices, while a sick one stumbles, hurries, or pauses before it strikes. On this
particular morning the tall clock from the town hall refused to speak at all. Its pendulum was straight, its spring was
new, and yet the hands had stopped at nine minutes past four. "You are not broken," she told it. "You are only afraid
of something." She took off the face and found a spider, which had tied two wheels together with remarkable patience.

Water boils at a lower temperature on a mountain than at the coast, because the air above presses on it less. At sea
level the boiling point is 100 degrees Celsius; at 3,000 metres it is close to 90. Cooking therefore takes longer, and
a pressure cooker, which raises the pressure again, saves fuel as well as time. The same idea explains why a liquid
can be distilled gently in a vacuum.

from dataclasses import dataclass, field


@dataclass
class Inventory:
    """Counts items by name and remembers the smallest stock that was ever seen."""

    items: dict[str, int] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        if count < 0:
            raise ValueError(f"cannot add {count} of {name}")
        self.items[name] = self.items.get(name, 0) + count
        self.lowest.setdefault(name, self.items[name])

    def remove(self, name: str, count: int = 1) -> int:
        available = self.items.get(name, 0)
        taken = min(available, count)
        self.items[name] = available - taken
        self.lowest[name] = min(self.lowest.get(name, available), available - taken)
        return taken


def binary_search(values: list[int], wanted: int) -> int | None:
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return None

Question: Which is larger, three quarters of eighty or two thirds of ninety-six?
Answer: Three quarters of 80 is 60. Two thirds of 96 is 64. So two thirds of ninety-six is larger, by 4.

Question: Name three things to check before a long bicycle tour.
Answer: First, the brakes: the pads should not be worn and the cables should move freely. Second, the tyres: look for
cuts, and pump them to the pressure printed on the side. Third, the chain: clean it, oil it, and replace it if it has
stretched. It also helps to carry a spare tube, a small pump and some water.

SELECT city, COUNT(*) AS visits, AVG(duration) AS minutes
FROM journeys
WHERE started >= '2024-01-01' AND cancelled = FALSE
GROUP BY city
HAVING COUNT(*) > 10
ORDER BY visits DESC;

Dear Ms Okafor, thank you for your letter of 12 March. We have looked at the measurements that you sent, and we agree
that the second sensor reads about half a degree too high. Please return it in the enclosed box; we will replace it free
of charge and send you the calibration sheet of the new one. We apologise for the trouble. Kind regards, the service
team.
'''
