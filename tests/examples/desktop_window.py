"""A desktop window that streams answers, stays responsive, and stops on a button: `desktop_window.py PAIR`."""

import queue
import sys
import threading
import tkinter as tk

import specdec_onnx as sd


class Window(tk.Tk):
    """One conversation. The model runs in a thread; only this class's methods on the main thread touch widgets."""

    def __init__(self, engine: sd.Engine) -> None:
        super().__init__()
        self.title("specdec")
        self.engine, self.chat = engine, engine.chat()
        self.steps: queue.Queue[sd.Step] = queue.Queue()
        self.question = tk.Entry(self)
        self.question.bind("<Return>", lambda event: self.ask())
        self.answer = tk.Text(self, wrap="word", width=72, height=20)
        self.status = tk.Label(self, anchor="w", text="Ask something and press Enter.")
        self.stop = tk.Button(self, text="Stop", state="disabled", command=engine.cancel)
        for widget in (self.question, self.answer, self.status, self.stop):
            widget.pack(fill="x", padx=8, pady=4)
        self.after(20, self.show)

    def ask(self) -> None:
        """Start an answer to what stands in the entry."""
        self.stop["state"], self.question["state"] = "normal", "disabled"
        self.answer.insert("end", f"\n> {self.question.get()}\n")
        threading.Thread(target=self.stream, args=(self.question.get(),), daemon=True).start()

    def stream(self, question: str) -> None:
        """In the thread: hand every step over to the window."""
        for step in self.chat.send(question, max_new_tokens=400):
            self.steps.put(step)

    def show(self) -> None:
        """On the main thread, many times a second: show what has come."""
        while not self.steps.empty():
            step = self.steps.get()
            self.answer.insert("end", step.text)
            self.answer.see("end")
            if step.finish_reason:
                speed = self.engine.last.statistics.decode_tokens_per_second
                self.status["text"] = f"{step.finish_reason}, {speed:.1f} tokens/s"
                self.stop["state"], self.question["state"] = "disabled", "normal"
        self.after(20, self.show)


if __name__ == "__main__":
    Window(sd.load(sys.argv[1])).mainloop()
