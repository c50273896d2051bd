class Engine:
	def run(self):
		if self:
		  	work()
		return 1

def other():
	pass
